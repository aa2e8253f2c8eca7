// @ts-check
// The input field: a message, a steer into the run, or a follow-up after it; with images.

import { path, post } from './api.js';
import { fill, h, icon, ICONS } from './dom.js';
import { toast, tried } from './keys.js';
import { server } from './server.js';

/** Drafts of this tab, by conversation. @type {Map<string, string>} */
const drafts = new Map();

/** @param {string} name @param {string} text */
export const draft = (name, text) => drafts.set(name, text);

export class Composer {
  /** @param {import('./model.js').Conversation} conversation */
  constructor(conversation) {
    this.conversation = conversation;
    this.word = '';
    /** @type {{mediaType: string, data: string, url: string}[]} */
    this.images = [];
    this.field = /** @type {HTMLTextAreaElement} */ (h('textarea', {
      rows: 1, 'aria-label': 'Message', onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event), oninput: () => this.typed(),
      onpaste: (/** @type {ClipboardEvent} */ event) => this.add(event.clipboardData?.files),
    }));
    this.field.value = drafts.get(conversation.name) ?? '';
    const file = /** @type {HTMLInputElement} */ (h('input', { type: 'file', accept: 'image/*', multiple: true, hidden: true, 'aria-label': 'Add images', onchange: () => { this.add(file.files); file.value = ''; } }));
    this.previews = h('div.previews');
    this.send = h('button.primary.send', { type: 'submit' });
    this.later = h('button', { type: 'button', onclick: () => this.submit('DELIVERY_FOLLOW_UP') }, 'Queue ', h('kbd', {}, 'Tab'));
    this.stop = h('button.danger', { type: 'button', title: 'Stop the run, its model request and all its processes', onclick: () => this.cancel() }, icon(ICONS.stop), 'Cancel ', h('kbd', {}, 'Esc'));
    this.element = h('form.composer', {
      onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); this.submit(); },
      ondragover: (/** @type {Event} */ event) => event.preventDefault(),
      ondrop: (/** @type {DragEvent} */ event) => { event.preventDefault(); this.add(event.dataTransfer?.files); },
    }, this.previews, this.field, h('div.row', {}, h('button.plain', { type: 'button', 'aria-label': 'Add images', title: 'Add images', onclick: () => file.click() }, icon(ICONS.image)), file,
      h('span.grow'), this.stop, this.later, this.send));
    this.update();
  }

  update() {
    const { busy, state, info } = this.conversation, used = state.kind === 'STATE_KIND_CONTEXT_EXHAUSTED';
    this.element.hidden = server.readOnly || Boolean(info?.parent);
    this.stop.hidden = !busy;
    this.later.hidden = !busy;
    const word = busy ? 'Steer' : 'Send';
    if (this.word !== word) fill(this.send, icon(ICONS.send), `${word} `, h('kbd', {}, '↵'));
    this.word = word;
    this.field.placeholder = used ? 'The context is used up: continue in a new conversation (menu above)'
      : busy ? 'The agent reads this at its next step. Tab queues it for the next run.' : 'Message the agent…  Shift ↵ for a new line';
    this.field.disabled = used;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.isComposing) return;
    if (event.key === 'Enter' && !event.shiftKey) {
      event.preventDefault();
      this.submit();
    } else if (event.key === 'Tab' && !event.shiftKey && this.conversation.busy && this.field.value.trim()) {
      event.preventDefault();
      this.submit('DELIVERY_FOLLOW_UP');
    } else if (event.key === 'Escape' && (!this.conversation.busy || this.conversation.approvals.size || this.conversation.questions.size)) {
      event.preventDefault(); // with a question open it leaves the field, for the keys that answer; again, it cancels
      this.field.blur();
    }
  }

  typed() {
    drafts.set(this.conversation.name, this.field.value);
    this.field.style.setProperty('height', 'auto');
    this.field.style.setProperty('height', `${Math.min(this.field.scrollHeight, 260)}px`);
  }

  /** @param {string} [delivery] */
  async submit(delivery = this.conversation.busy ? 'DELIVERY_STEER' : 'DELIVERY_DIRECT') {
    const text = this.field.value, images = this.images;
    if (!text.trim() && !images.length) return;
    this.field.value = '';
    this.images = [];
    this.typed();
    this.drawPreviews();
    try {
      await post(`${path(this.conversation.name)}:send`, { text, delivery, ...(images.length && { images: images.map(({ mediaType, data }) => ({ mediaType, data })) }) });
    } catch (error) {
      toast(/** @type {Error} */ (error).message, 'error');
      if (!this.field.value) this.field.value = text; // a refusal changes nothing: the text is still the writer's
      this.images = images;
      this.typed();
      this.drawPreviews();
    }
  }

  async cancel() {
    const { name, state } = this.conversation;
    const answer = await tried(() => post(`${path(name)}:cancel`, state.run ? { run: state.run } : {}));
    for (const each of answer?.returnedSteers ?? []) {
      this.field.value = [this.field.value, ...(each.message.content ?? []).map((/** @type {any} */ block) => block.text ?? '')].filter(Boolean).join('\n');
      toast('Messages that the agent has not read are back in the input field.');
    }
    this.typed();
  }

  /** @param {FileList | null | undefined} files */
  async add(files) {
    for (const file of [...files ?? []]) { // the list is emptied while the files are read
      if (!file.type.startsWith('image/')) continue;
      const bytes = new Uint8Array(await file.arrayBuffer());
      let text = '';
      for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
      this.images.push({ mediaType: file.type, data: btoa(text), url: URL.createObjectURL(file) });
    }
    this.drawPreviews();
  }

  drawPreviews() {
    fill(this.previews, this.images.map((each) => h('figure', {}, h('img', { src: each.url, alt: 'Image to send', height: 56 }),
      h('button.plain', { type: 'button', 'aria-label': 'Remove the image', onclick: () => { URL.revokeObjectURL(each.url); this.images = this.images.filter((other) => other !== each); this.drawPreviews(); } }, '✕'))));
  }
}
