// @ts-check
// The messages of a conversation, and text that is streaming. Unchanged parts are not redrawn.

import { h, icon, ICONS, shown as visible } from './dom.js';
import { clock, exactly, short, stopWords, tokens, word, words } from './format.js';
import { Growing, markdown } from './markdown.js';
import { picture, ToolCard } from './tool_card.js';

/** Titles of system messages, for people. @type {Record<string, string>} */
const NOTICES = words({
  mode_restricted: 'Mode: restricted. Tools can read but not change anything, and have no network.',
  mode_workspace: 'Mode: workspace. Tools can change files beneath the working directory, and have no network.',
  mode_unrestricted: 'Mode: unrestricted. Tools may change files and run any command.',
  summary: 'Summary of the conversation', forked: 'This conversation is a fork', interrupted: 'The previous run was interrupted',
  sub_agent_results: 'Results of the sub-agents', jobs_ended: 'Background jobs have ended', mcp_restarted: 'MCP servers were restarted',
});
const NEAR = 120, GROUP = 50;

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
    /** @type {Map<string, {element: HTMLElement, text: Growing, reasoning: HTMLElement, thought: Text, thoughts: number}>} */
    this.slots = new Map();
    /** The cards of calls without a result. @type {Set<ToolCard>} */
    this.open = new Set();
    /** The last element of each run. @type {Map<string, HTMLElement>} */
    this.ends = new Map();
    /** The runs whose outcome is shown. @type {Set<string>} */
    this.ended = new Set();
    this.older = h('button.older', { type: 'button', hidden: true, onclick: () => this.readOlder() }, 'Earlier messages');
    /** @type {Map<number, HTMLElement>} */
    this.groups = new Map();
    this.list = h('div.history');
    this.live = h('div.live-text', { 'aria-live': 'off' });
    this.jump = h('button.jump', { type: 'button', hidden: true, onclick: () => this.toEnd() }, 'Latest ↓');
    this.element = h('div.transcript', { tabindex: 0, role: 'log', 'aria-label': 'Messages', onscroll: () => this.scrolled() }, this.older, this.list, this.live);
    this.atEnd = true;
    new ResizeObserver(() => this.atEnd && this.toEnd()).observe(this.element);
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
    if (all || what.has('results')) for (const card of this.cards.values()) card.update();
    else if (['outputs', 'messages', 'state'].some((each) => what.has(each))) for (const card of this.open) card.update();
    for (const card of this.open) if (this.conversation.results.has(card.call.toolUseId)) this.open.delete(card);
    if (all || what.has('stops')) this.stops();
    if (all || what.has('slots')) this.text();
    this.older.hidden = !this.conversation.older;
    if (this.atEnd) this.toEnd();
  }

  messages() {
    const { messages } = this.conversation, fresh = messages.filter((each) => !this.drawn.has(each.name));
    if (this.drawn.size + fresh.length > messages.length) this.forget(new Set(messages.map((each) => each.name)));
    for (const message of fresh) {
      const element = this.message(message), end = this.ends.get(message.requestCycle);
      this.drawn.set(message.name, element);
      if (message.requestCycle && !(end && number(end) > number(element))) this.ends.set(message.requestCycle, element);
      const group = this.group(Math.floor(number(element) / GROUP));
      let before = group.lastElementChild;
      while (before && number(before) > number(element)) before = before.previousElementSibling;
      group.insertBefore(element, before ? before.nextSibling : group.firstChild);
    }
    this.stops();
  }

  /** Remove all other messages. @param {Set<string>} kept */
  forget(kept) {
    for (const [name, element] of this.drawn) {
      if (kept.has(name)) continue;
      this.drawn.delete(name);
      element.remove();
      const cycle = element.dataset.cycle ?? '';
      if (this.ends.get(cycle) === element && this.ends.delete(cycle)) this.ended.delete(cycle);
    }
  }

  /** The list of a group of messages: hidden ones cost per group, not per message. @param {number} at */
  group(at) {
    const known = this.groups.get(at);
    if (known) return known;
    const made = h('ol.messages');
    const next = Math.min(...[...this.groups.keys()].filter((each) => each > at));
    this.list.insertBefore(made, this.groups.get(next) ?? null);
    this.groups.set(at, made);
    return made;
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
        h('button.plain.small', { type: 'button', title: 'Fork before this message, and edit its text', onclick: () => this.act(message, 'rewind') }, 'Rewind'),
        h('button.plain.small', { type: 'button', title: 'Fork at the end of this run', onclick: () => this.act(message, 'fork') }, 'Fork')));
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
      this.open.add(card);
      return card.element;
    });
  }

  /** @param {any} message */
  foot(message) {
    const usage = message.usage;
    const text = textOf(message);
    return h('div.meta', {}, h('time', { title: exactly(message.createTime) }, clock(message.createTime)),
      usage && h('span', { title: `${usage.inputTokens ?? 0} tokens in, ${usage.cacheReadTokens ?? 0} from the cache, ${usage.outputTokens ?? 0} out` },
        `${tokens(Number(usage.inputTokens ?? 0) + Number(usage.cacheReadTokens ?? 0))} in · ${tokens(usage.outputTokens)} out`),
      text && h('button.plain.small', { type: 'button', onclick: () => navigator.clipboard.writeText(text) }, icon(ICONS.copy), 'Copy'));
  }

  /** A line after the last message of each run that was not simply completed. */
  stops() {
    for (const [cycle, stop] of this.conversation.stops) {
      const { text, tone } = stopWords(stop);
      const last = this.ends.get(cycle);
      if (tone === 'done' || !last || this.ended.has(cycle)) continue;
      this.ended.add(cycle);
      last.append(h(`div.note.${tone}`, {}, h('span', {}, text)));
      last.removeAttribute('hidden');
    }
  }

  text() {
    const { slots } = this.conversation;
    for (const [key, slot] of slots) {
      let shown = this.slots.get(key);
      if (!shown) {
        const thought = document.createTextNode('');
        const reasoning = h('details.thinking', { hidden: true, open: true }, h('summary', {}, 'Thinking…'), h('div.plain', {}, thought));
        shown = { text: new Growing(), reasoning, thought, thoughts: 0, element: h('div.agent') };
        shown.element.append(reasoning, shown.text.element);
        this.slots.set(key, shown);
        this.live.append(shown.element);
      }
      shown.text.show(slot.text.text);
      shown.reasoning.hidden = !slot.reasoning.text;
      if (shown.thoughts !== slot.reasoning.points) shown.thought.data = visible(slot.reasoning.text);
      shown.thoughts = slot.reasoning.points;
      if (slot.text.text) shown.reasoning.removeAttribute('open');
    }
    for (const [key, { element }] of this.slots) {
      if (slots.has(key)) continue;
      element.remove();
      this.slots.delete(key);
    }
  }

  /** The agent's last text. */
  lastAnswer() {
    const last = this.conversation.messages.filter((each) => each.role === 'ROLE_AGENT' && textOf(each)).pop();
    return last ? textOf(last) : '';
  }
}

/** The sequence of a message that is drawn. @param {Element} element */
const number = (element) => Number(element.id.slice(2));

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

