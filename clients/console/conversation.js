// @ts-check
// One conversation: its head, the chat, and beside it the views of what happens inside.

import { call, get, path, post } from './api.js';
import { Composer, draft } from './composer.js';
import { fill, h, icon, ICONS, nextFrame, ROOM, Scope, shown } from './dom.js';
import { lastPart, money, slugOf, stateWords, tokens } from './format.js';
import { bind, confirmed, dialog, moving, toast, tried } from './keys.js';
import { Conversation } from './model.js';
import { server } from './server.js';
import { settings } from './settings.js';
import { textOf, Transcript } from './transcript.js';
import { drawWaiting, showRules } from './waiting.js';
import { VIEWS } from './views.js';
import { history } from './events.js';

const FIRST_PAUSE_MS = 300, LONGEST_PAUSE_MS = 5_000;

/**
 * @param {Scope} scope @param {HTMLElement} into @param {string} id @param {string[]} rest the view and what it shows
 * @param {import('./list.js').ConversationList} list
 * @returns {(rest: string[]) => void} go elsewhere in the same conversation
 */
export function drawConversation(scope, into, id, rest, list) {
  const page = new Page(scope, into, id, list);
  page.go(rest);
  return (to) => page.go(to);
}

/** What a failed read means, and whether it may succeed later. @param {number} status 0 if there was no answer @returns {[string, boolean]} */
function failed(status) {
  if (!status) return ['The server cannot be reached', true];
  if (status === 403) return ['You cannot read this conversation', false];
  return status < 429 ? ['No such conversation', false] : ['The server cannot show this conversation now', true];
}

class Page {
  /** @param {Scope} scope @param {HTMLElement} into @param {string} id @param {import('./list.js').ConversationList} list */
  constructor(scope, into, id, list) {
    this.scope = scope;
    this.into = into;
    this.id = id;
    this.list = list;
    /** @type {Set<string>} */
    this.due = new Set();
    this.draw = this.draw.bind(this);
    this.conversation = new Conversation(`conversations/${id}`, (what) => {
      for (const each of what) this.due.add(each);
      nextFrame(this.draw);
    });
    const { conversation } = this;
    this.transcript = new Transcript(conversation, (message, what) => (what === 'fork' ? this.forkAt(message) : this.rewind(message)));
    this.head = h('header.conversation-head');
    this.tabs = h('nav.tabs', { 'aria-label': 'Views' });
    this.waiting = h('div.waiting');
    this.inspector = h('section.inspector', { 'aria-label': 'Inspector' });
    this.place = h('div.chat-place');
    this.panes = h('div.panes', {}, h('section.chat', { 'aria-label': 'Chat' }, this.transcript.element, this.transcript.jump, this.waiting, this.place), this.inspector);
    fill(into, this.head, this.tabs, this.panes);
    /** @type {Scope | undefined} */
    this.inner = undefined;
    this.view = '';
    this.waits = this.headKey = this.settingsKey = '';
    /** @type {Composer | undefined} */
    this.composer = undefined;
    /** @type {((what: Set<string>) => void) | undefined} */
    this.shown = undefined;
    /** @type {((rest: string[]) => void) | undefined} */
    this.turn = undefined;
    /** @type {string[]} */
    this.rest = [];
    scope.add(() => { conversation.close(); this.inner?.close(); });
    this.open();
    this.keys();
    scope.every(1_000, () => conversation.busy && this.drawHead());
    const resized = () => this.go(this.rest);
    ROOM.addEventListener('change', resized);
    scope.add(() => ROOM.removeEventListener('change', resized));
  }

  async open() {
    const { conversation, scope } = this;
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      try {
        await conversation.open();
        break;
      } catch (error) {
        if (scope.over) return;
        const { status, message } = /** @type {import('./api.js').ApiError} */ (error), [title, again] = failed(status);
        fill(this.into, h('div.blank', { role: 'status' }, h('h2', {}, title), message.toLowerCase() !== title.toLowerCase() && h('p', {}, message), again && h('p.row', {}, h('span.spinner'), 'Trying again…'), h('a.button', { href: '#/' }, 'All conversations')));
        if (!again) return;
        await new Promise((resolve) => setTimeout(resolve, pause));
        if (scope.over) return;
      }
    }
    fill(this.into, this.head, this.tabs, this.panes);
    if (scope.over) return conversation.close();
    this.composer = new Composer(conversation);
    fill(this.place, settings(conversation), this.composer.element);
    this.draw();
    this.go(this.rest);
    if (matchMedia('(pointer: fine)').matches && !moving) this.composer.field.focus();
    try {
      const { requestCycles = [] } = await get(`${path(conversation.name)}/requestCycles`, { view: 'VIEW_ROUNDS', pageSize: 50, descending: true });
      for (const each of requestCycles) if (each.stopReason && !conversation.stops.has(each.name)) conversation.stops.set(each.name, { ...each, reason: each.stopReason, detail: each.stopDetail });
      this.transcript.stops();
      if (![...conversation.results.values()].some((each) => each.outcome === 'TOOL_OUTCOME_CANCELLED')) return;
      for (const { toolTreeReaped: each } of (await history(conversation)).events) if (each) conversation.reaped.set(each.toolUseId, each);
      conversation.changed(new Set(['results']));
    } catch { /* the messages are there without how their runs ended */ }
  }

  draw() {
    const { conversation, due } = this;
    if (this.scope.over || !conversation.info) return;
    this.due = new Set();
    if (conversation.deleted) return fill(this.into, h('div.blank', {}, h('h2', {}, 'Deleted'), h('p', {}, 'This conversation no longer exists.'), h('a.button', { href: '#/' }, 'All conversations')));
    const all = due.has('all');
    if (all || due.has('state') || due.has('info')) {
      this.drawHead();
      this.composer?.update();
      this.drawSettings();
    }
    if (all || ['state', 'waiting', 'queue'].some((each) => due.has(each))) this.drawWaiting();
    this.transcript.update(due.size ? due : new Set(['all']));
    this.shown?.(due);
  }

  /** Draws the settings if one has changed, so that a list which a person has open stays. */
  drawSettings() {
    const { model, generation, mode, approvalPolicy, parent } = this.conversation.info;
    const key = JSON.stringify([model, generation, mode, approvalPolicy, parent, server.models.length]);
    if (key !== this.settingsKey) this.place.firstElementChild?.replaceWith(settings(this.conversation));
    this.settingsKey = key;
  }

  drawWaiting() {
    const { approvals, questions, clientCalls, queue } = this.conversation;
    const key = [...approvals.keys(), ...questions.keys(), ...clientCalls.keys(), ...queue.keys()].join('|');
    if (key === this.waits) return; // what is being filled in stays
    this.waits = key;
    fill(this.waiting, drawWaiting(this.conversation, server.readOnly));
  }

  drawHead() {
    const { info, state, busy } = this.conversation, { text, tone } = stateWords(state);
    const usage = info.contextUsage ?? {}, share = Number(usage.usedTokens ?? 0) / Number(usage.usableWindowTokens || 1);
    const key = [info.title, info.slug, text, Math.round(share * 100), info.totalUsage?.costMicros, info.archiveTime, busy, Boolean(info.parent)].join('|');
    if (key === this.headKey) return;
    this.headKey = key;
    document.title = document.title.replace(/^(\(\d+\) )?.*$/, (_, waits = '') => `${waits}${shown(info.title || slugOf(info))} – Bedrock`);
    const known = (/** @type {string} */ name) => slugOf(this.list.all.get(name) ?? { name });
    const items = () => [...this.head.querySelectorAll('.menu-items > *')];
    const open = Boolean(this.head.querySelector('details.menu[open]')), at = items().findIndex((each) => each === document.activeElement);
    const menu = h('details.menu', { open }, h('summary', { 'aria-label': 'More' }, icon(ICONS.more)), h('div.menu-items', { onclick: () => menu.removeAttribute('open') }, this.actions()));
    fill(this.head, h('a.back', { href: '#/', 'aria-label': 'All conversations' }, icon(ICONS.back)),
      h('div.titles', {}, h('h1', {}, info.title || slugOf(info)), h('p', {}, h('span', {}, slugOf(info)), h('span.path', {}, info.workingDirectory),
        info.forkedFrom && h('a', { href: `#/c/${lastPart(info.forkedFrom)}` }, `fork of ${known(info.forkedFrom)}`), info.parent && h('a', { href: `#/c/${lastPart(info.parent)}` }, `sub-agent of ${known(info.parent)}`),
        info.continuedBy && h('a', { href: `#/c/${lastPart(info.continuedBy)}` }, 'continued →'), info.archiveTime && h('span.badge', {}, 'archived'))),
      h('div.gauge', { title: `${tokens(usage.usedTokens)} of ${tokens(usage.usableWindowTokens)} tokens of the context` },
        h('div.bar', {}, h('div.fill', { style: { width: `${Math.min(100, share * 100)}%` } })), h('span', {}, `${Math.round(share * 100)}%`),
        Number(info.totalUsage?.costMicros ?? 0) > 0 && h('span', {}, money(info.totalUsage.costMicros))),
      h(`span.state.${tone}`, { role: 'status' }, h('span.dot', { 'aria-hidden': 'true' }), text),
      !server.readOnly && menu);
    if (at >= 0) /** @type {HTMLElement} */ (items()[at]).focus();
  }

  /** @param {string} tab the view whose address this is; the chat's has none */
  drawTabs(tab) {
    const base = `#/c/${this.id}`;
    if (this.tabs.dataset.key === tab && this.tabs.childElementCount) return;
    this.tabs.dataset.key = tab;
    fill(this.tabs, h('a', { href: base, 'aria-current': tab ? undefined : 'page' }, 'Chat'),
      Object.entries(VIEWS).map(([name, { title }]) => h('a', { href: `${base}/${name}`, 'aria-current': name === tab ? 'page' : undefined }, title)));
  }

  actions() {
    const { conversation } = this, { name, info } = conversation;
    const item = (/** @type {string} */ text, /** @type {() => any} */ run, tone = '') => h(`button${tone}`, { type: 'button', onclick: run }, text);
    const used = conversation.state.kind === 'STATE_KIND_CONTEXT_EXHAUSTED';
    return [
      item('Rename', () => this.rename()),
      item('Fork after the last run', () => this.fork({})),
      used ? item('Continue in a new conversation', () => this.proceed()) : item('Compact: summarize and continue', () => this.compact()),
      item('Start sub-agents…', () => this.spawn()),
      item('Approval rules…', () => showRules(conversation)),
      item('Copy the name', () => navigator.clipboard.writeText(slugOf(info)).then(() => toast('Copied'))),
      h('a', { href: `/v1/${path(name)}:export`, download: `${slugOf(info)}.jsonl` }, 'Export as JSON Lines'),
      info.archiveTime ? item('Unarchive', () => tried(() => post(`${path(name)}:unarchive`))) : item('Archive', () => tried(() => post(`${path(name)}:archive`))),
      item('Delete…', () => this.remove(), '.danger'),
    ];
  }

  rename() {
    const { info, name } = this.conversation;
    const title = /** @type {HTMLInputElement} */ (h('input', { id: 'title', name: 'title', value: info.title ?? '', maxlength: 256 })), slug = /** @type {HTMLInputElement} */ (h('input', { id: 'slug', name: 'slug', value: info.slug ?? '', maxlength: 63 }));
    const box = dialog('Rename', h('form', {
      onsubmit: async (/** @type {Event} */ event) => {
        event.preventDefault();
        if (await tried(() => call('PATCH', `${path(name)}?updateMask=title,slug`, { title: title.value, slug: slug.value }))) box.close();
      },
    }, h('div.field', {}, h('label', { for: 'title' }, 'Title'), title), h('div.field', {}, h('label', { for: 'slug' }, 'Slug, for commands'), slug), h('div.row.end', {}, h('button.primary', { type: 'submit' }, 'Rename'))));
    title.select();
  }

  /** @param {Record<string, string>} body @param {string} [text] for the composer of the fork */
  async fork(body, text = '') {
    const answer = await tried(() => post(`${path(this.conversation.name)}:fork`, body));
    if (!answer) return;
    if (text) draft(answer.conversation.name, text);
    location.hash = `#/c/${lastPart(answer.conversation.name)}`;
  }

  /** @param {any} message */
  forkAt(message) {
    return this.fork({ requestCycle: message.requestCycle });
  }

  /** Fork before a message, with its text to change. @param {any} message */
  async rewind(message) {
    const { conversation } = this, before = conversation.messages.filter((each) => Number(each.sequence) < Number(message.sequence) && each.requestCycle && each.requestCycle !== message.requestCycle).pop();
    if (before) return this.fork({ requestCycle: before.requestCycle }, textOf(message));
    const { workingDirectory, model, mode, approvalPolicy } = conversation.info; // before the first message there is nothing to fork
    const answer = await tried(() => post('conversations', { workingDirectory, model, mode, approvalPolicy }));
    if (!answer) return;
    draft(answer.conversation.name, textOf(message));
    location.hash = `#/c/${lastPart(answer.conversation.name)}`;
  }

  async compact() {
    if (await tried(() => post(`${path(this.conversation.name)}:triggerContinuation`))) toast('The conversation is being summarized; you can then continue it from the menu.');
  }

  async proceed() {
    const answer = await tried(() => post(`${path(this.conversation.name)}:continue`, { includeSummary: true }));
    if (answer) location.hash = `#/c/${lastPart(answer.conversation.name)}`;
  }

  spawn() {
    const field = /** @type {HTMLTextAreaElement} */ (h('textarea', { id: 'tasks', name: 'tasks', rows: 5, placeholder: 'One task per line' }));
    const box = dialog('Start sub-agents', h('form', {
      onsubmit: async (/** @type {Event} */ event) => {
        event.preventDefault();
        const tasks = field.value.split('\n').filter((each) => each.trim()).map((task) => ({ task }));
        if (await tried(() => post(`${path(this.conversation.name)}:spawnSubAgents`, { tasks }))) {
          box.close();
          location.hash = `#/c/${this.id}/agents`;
        }
      },
    }, h('div.field', {}, h('label', { for: 'tasks' }, 'Tasks'), field), h('p.small', {}, 'Each task gets its own sub-agent; they work in parallel, and the agent reads all results.'), h('div.row.end', {}, h('button.primary', { type: 'submit' }, 'Start'))));
  }

  async remove() {
    const { name, info, busy } = this.conversation;
    if (!await confirmed('Delete the conversation?', `${info.title || slugOf(info)} is deleted with its history and its sub-agents. Files are kept.`, 'Delete')) return;
    if (await tried(() => call('DELETE', `${path(name)}${busy ? '?force=true' : ''}`))) location.hash = '#/';
  }

  keys() {
    const press = (/** @type {string} */ key) => /** @type {HTMLElement | null} */ (this.waiting.querySelector(`[data-key="${key}"]`))?.click();
    const views = Object.keys(VIEWS);
    bind(this.scope, 'Conversation', {
      ...(server.readOnly ? {} : {
        c: ['write a message', () => this.composer?.field.focus()],
        a: ['approve the request', () => press('a')],
        d: ['deny the request', () => press('d')],
        w: ['withdraw the last queued message', () => press('w')],
        Escape: ['cancel the run', () => this.conversation.busy && this.composer?.cancel()],
        f: ['fork after the last run', () => this.fork({})],
        r: ['rename', () => this.rename()],
        m: ['open the menu', () => /** @type {HTMLElement | null} */ (this.head.querySelector('summary'))?.click()],
      }),
      y: ['copy the last answer', () => navigator.clipboard.writeText(this.transcript.lastAnswer()).then(() => toast('Copied'))],
      G: ['go to the end of the chat', () => this.transcript.toEnd()],
      '1': ['the chat', () => { location.hash = `#/c/${this.id}`; }],
      ...Object.fromEntries(views.map((name, index) => [String(index + 2), [VIEWS[name].about, () => { location.hash = `#/c/${this.id}/${name}`; }]])),
    });
  }

  /** @param {string[]} rest */
  go(rest) {
    const [name = '', ...more] = rest, tab = VIEWS[name] ? name : '', known = tab || (ROOM.matches ? 'timeline' : '');
    this.rest = rest;
    this.panes.classList.toggle('inspecting', known !== '');
    this.drawTabs(tab);
    if (!tab && /^m\d+$/.test(name)) document.getElementById(`m-${name.slice(1)}`)?.scrollIntoView();
    if (!this.conversation.info) return; // a view is drawn once there is something to draw, and gets the name by then
    if (known === this.view && this.inner && known) return this.turn?.(tab ? more : []);
    this.view = known;
    this.inner?.close();
    this.shown = this.turn = undefined;
    this.inner = new Scope();
    this.inspector.replaceChildren();
    this.inspector.className = `inspector ${known}`;
    if (known) {
      const { draw } = VIEWS[known];
      const made = draw(this.inner, this.inspector, this.conversation, tab ? more : [], `#/c/${this.id}`);
      this.shown = made.update;
      this.turn = made.go;
    }
  }
}

