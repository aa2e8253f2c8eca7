// @ts-check
// The messages of a conversation, and what is being written. What has not changed is not drawn again.

import { h, icon, ICONS, shown as visible } from './dom.js';
import { clock, exactly, short, stopWords, tokens, word, words } from './format.js';
import { Growing, markdown } from './markdown.js';
import { picture, ToolCard } from './tool_card.js';

/** What system messages are, for people. @type {Record<string, string>} */
const NOTICES = words({
  mode_restricted: 'Mode: restricted. Tools can read but change nothing, and have no network.',
  mode_workspace: 'Mode: workspace. Tools can change files beneath the working directory, and have no network.',
  mode_unrestricted: 'Mode: unrestricted. Tools may change files and run any command.',
  summary: 'Summary of the conversation', forked: 'This conversation is a fork', interrupted: 'The run before was interrupted',
  sub_agent_results: 'Results of the sub-agents', jobs_ended: 'Background jobs have ended', mcp_restarted: 'MCP servers were restarted',
});
const NEAR = 120;

export class Transcript {
  /**
   * @param {import('./model.js').Conversation} conversation
   * @param {(message: any, what: string) => void} act rewind to or fork at a message
   */
  constructor(conversation, act) {
    this.conversation = conversation;
    this.act = act;
    /** @type {Map<string, HTMLElement>} */
    this.drawn = new Map();
    /** @type {Map<string, ToolCard>} */
    this.cards = new Map();
    /** @type {Map<string, {element: HTMLElement, text: Growing, reasoning: HTMLElement, thought: Text}>} */
    this.slots = new Map();
    this.older = h('button.older', { type: 'button', hidden: true, onclick: () => this.readOlder() }, 'Earlier messages');
    this.list = h('ol.messages');
    this.live = h('div.live-text', { 'aria-live': 'off' });
    this.jump = h('button.jump', { type: 'button', hidden: true, onclick: () => this.toEnd() }, 'Latest ↓');
    this.element = h('div.transcript', { tabindex: 0, role: 'log', 'aria-label': 'Messages', onscroll: () => this.scrolled() }, this.older, this.list, this.live);
    this.atEnd = true;
    this.reading = false;
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    this.atEnd = scrollHeight - scrollTop - clientHeight < NEAR;
    this.jump.hidden = this.atEnd;
    if (scrollTop < 200) this.readOlder();
  }

  toEnd() {
    this.element.scrollTop = this.element.scrollHeight;
    this.atEnd = true;
  }

  async readOlder() {
    if (this.reading || !this.conversation.older) return;
    this.reading = true;
    const from = this.element.scrollHeight - this.element.scrollTop;
    try {
      if (await this.conversation.readOlder()) this.update(new Set(['all']));
      this.element.scrollTop = this.element.scrollHeight - from;
    } finally {
      this.reading = false;
    }
  }

  /** @param {Set<string>} what */
  update(what) {
    const all = what.has('all');
    if (all || what.has('messages')) this.messages();
    if (all || ['outputs', 'results', 'messages', 'state'].some((each) => what.has(each))) for (const card of this.cards.values()) card.update();
    if (all || what.has('stops')) this.stops();
    if (all || what.has('slots')) this.text();
    this.older.hidden = !this.conversation.older;
    if (this.atEnd) this.toEnd();
  }

  messages() {
    const { messages } = this.conversation;
    /** @type {Node | null} */
    let place = this.list.firstChild;
    const kept = new Set();
    for (const message of messages) {
      let element = this.drawn.get(message.name);
      if (!element) {
        element = this.message(message);
        this.drawn.set(message.name, element);
      }
      kept.add(message.name);
      if (element === place) place = place.nextSibling;
      else this.list.insertBefore(element, place);
    }
    while (place) {
      const next = place.nextSibling;
      place.parentNode?.removeChild(place);
      place = next;
    }
    for (const name of this.drawn.keys()) if (!kept.has(name)) this.drawn.delete(name);
    this.stops();
  }

  /** @param {any} message */
  message(message) {
    const id = { id: `m-${message.sequence}`, 'data-cycle': message.requestCycle ?? '' };
    switch (message.role) {
      case 'ROLE_USER': return this.user(message, id);
      case 'ROLE_AGENT': return h('li.agent', id, this.blocks(message), this.foot(message));
      case 'ROLE_TOOL': return h('li.tool-result', { ...id, hidden: true });
      case 'ROLE_ERROR': return h('li.note.error', id, h('span', {}, textOf(message)));
      default: return notice(message, id);
    }
  }

  /** @param {any} message @param {Record<string, string>} id */
  user(message, id) {
    const how = message.delivery === 'DELIVERY_STEER' ? 'steer' : message.delivery === 'DELIVERY_FOLLOW_UP' ? 'follow-up' : '';
    return h('li.user', id, h('div.bubble', {}, h('div.plain', {}, textOf(message)), images(message)),
      h('div.meta', {}, how && h('span.badge', {}, how), h('time', { title: exactly(message.createTime) }, clock(message.createTime)),
        h('button.plain.small', { type: 'button', title: 'A fork that ends before this message, with its text to change', onclick: () => this.act(message, 'rewind') }, 'Rewind'),
        h('button.plain.small', { type: 'button', title: 'A fork that ends with this run', onclick: () => this.act(message, 'fork') }, 'Fork')));
  }

  /** @param {any} message */
  blocks(message) {
    return (message.content ?? []).map((/** @type {any} */ block) => {
      if (block.reasoning !== undefined) return thinking(block.reasoning);
      if (block.text !== undefined) return markdown(block.text);
      if (block.image) return picture(block.image);
      if (!block.toolCall) return null;
      const card = new ToolCard(block.toolCall, this.conversation);
      this.cards.set(block.toolCall.toolUseId, card);
      return card.element;
    });
  }

  /** @param {any} message */
  foot(message) {
    const usage = message.usage;
    const text = textOf(message);
    return h('div.meta', {}, h('time', { title: exactly(message.createTime) }, clock(message.createTime)),
      usage && h('span', { title: `${usage.inputTokens ?? 0} tokens in, ${usage.cacheReadTokens ?? 0} of the cache, ${usage.outputTokens ?? 0} out` },
        `${tokens(Number(usage.inputTokens ?? 0) + Number(usage.cacheReadTokens ?? 0))} in · ${tokens(usage.outputTokens)} out`),
      text && h('button.plain.small', { type: 'button', onclick: () => navigator.clipboard.writeText(text) }, icon(ICONS.copy), 'Copy'));
  }

  /** A line after the last message of each run that was not simply completed. */
  stops() {
    for (const [cycle, stop] of this.conversation.stops) {
      const { text, tone } = stopWords(stop);
      if (tone === 'done' || this.list.querySelector(`[data-stop="${CSS.escape(cycle)}"]`)) continue;
      const last = [...this.list.querySelectorAll(`[data-cycle="${CSS.escape(cycle)}"]`)].pop();
      last?.append(h(`div.note.${tone}`, { 'data-stop': cycle }, h('span', {}, text)));
      last?.removeAttribute('hidden');
    }
  }

  text() {
    const { slots } = this.conversation;
    for (const [key, slot] of slots) {
      let shown = this.slots.get(key);
      if (!shown) {
        const thought = document.createTextNode('');
        const reasoning = h('details.thinking', { hidden: true, open: true }, h('summary', {}, 'Thinking…'), h('div.plain', {}, thought));
        shown = { text: new Growing(), reasoning, thought, element: h('div.agent') };
        shown.element.append(reasoning, shown.text.element);
        this.slots.set(key, shown);
        this.live.append(shown.element);
      }
      shown.text.show(slot.text.text);
      shown.reasoning.hidden = !slot.reasoning.text;
      shown.thought.data = visible(slot.reasoning.text);
      if (slot.text.text) shown.reasoning.removeAttribute('open');
    }
    for (const [key, { element }] of this.slots) {
      if (slots.has(key)) continue;
      element.remove();
      this.slots.delete(key);
    }
  }

  /** What the agent said last. */
  lastAnswer() {
    const last = this.conversation.messages.filter((each) => each.role === 'ROLE_AGENT' && textOf(each)).pop();
    return last ? textOf(last) : '';
  }
}

/** @param {any} message */
export const textOf = (message) => (message.content ?? []).map((/** @type {any} */ each) => each.text ?? '').join('');

/** @param {any} message */
const images = (message) => (message.content ?? []).map((/** @type {any} */ each) => each.image && picture(each.image));

/** @param {string} text */
const thinking = (text) => h('details.thinking', {}, h('summary', {}, 'Thought: ', h('span', {}, short(text, 90))), h('div.plain', {}, text));

/** @param {any} message @param {Record<string, string>} id */
function notice(message, id) {
  const kind = word(message.systemKind, 'SYSTEM_MESSAGE_KIND').replaceAll(' ', '_'), text = textOf(message);
  const title = NOTICES[kind] ?? (kind ? `Note to the agent: ${kind.replaceAll('_', ' ')}` : short(text));
  return h('li.note', id, text.length > title.length + 20 ? h('details', {}, h('summary', {}, title), h('div.plain', {}, text)) : h('span', {}, title));
}

