// @ts-check
// The live list of conversations: pages of the API, changes from the watch, and rows only for visible entries.

import { get } from './api.js';
import { fill, h, icon, ICONS, nextFrame } from './dom.js';
import { feed } from './feed.js';
import { ago, lastPart, money, remember, remembered, slugOf, stateWords } from './format.js';

const ROW = 62, PAGE = 100, SPARE = 6;

/** Quick filters, in the contract's filter language. @type {[string, string][]} */
const FILTERS = [['All', 'archived = false'], ['Waiting', 'archived = false AND state = awaiting_tool_approval'], ['Busy', 'archived = false AND busy = true'], ['Archived', 'archived = true']];

export class ConversationList {
  /** @param {import('./dom.js').Scope} scope */
  constructor(scope) {
    this.scope = scope;
    /** @type {Map<string, any>} */
    this.all = new Map();
    /** @type {any[]} */
    this.order = [];
    this.selected = '';
    this.token = '';
    this.reading = false;
    this.generation = 0;
    /** Changes that arrive while the list is read: the response may be older. @type {any[] | undefined} */
    this.meanwhile = undefined;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.typing = undefined;
    this.filter = remembered('filter', FILTERS[0][1]);
    this.text = '';
    /** @type {Set<string>} */
    this.waiting = new Set();
    this.input = /** @type {HTMLInputElement} */ (h('input', {
      type: 'search', placeholder: 'Search or filter', title: 'A word, or a filter such as labels.team = "a"', 'aria-label': 'Search the conversations', oninput: () => this.typed(), onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    }));
    this.error = h('p.filter-error', { role: 'alert', hidden: true });
    this.chips = h('div.chips', { role: 'group', 'aria-label': 'Which conversations' });
    this.space = h('div.space', { role: 'list' });
    this.scroll = h('div.rows', { tabindex: -1, onscroll: () => nextFrame(this.draw) }, this.space);
    this.element = h('div.list', {}, h('div.search', {}, icon(ICONS.search), this.input, h('kbd', {}, '/')), this.chips, this.error, this.scroll);
    /** @type {Map<string, {row: HTMLElement, key: string}>} */
    this.rows = new Map();
    this.draw = this.draw.bind(this);
    scope.add(feed.watch((line) => this.take(line)));
    scope.add(feed.onStatus((status, again) => (again || status === 'live') && this.read())); // what came before the watch began is not in it
    const size = new ResizeObserver(() => nextFrame(this.draw));
    size.observe(this.scroll);
    scope.add(() => size.disconnect());
    scope.every(30_000, () => { this.rows.forEach((each) => { each.key = ''; }); nextFrame(this.draw); });
    this.drawChips();
    this.read();
    this.readWaiting();
  }

  /** The current filter. */
  get wanted() {
    const text = this.text.trim();
    if (!text) return this.filter;
    if (/[=:<>]/.test(text)) return text;
    const quoted = JSON.stringify(text);
    return `${this.filter} AND (title:${quoted} OR slug:${quoted} OR working_directory:${quoted})`;
  }

  /** Whether no conversation exists. */
  get bare() {
    return !this.order.length && this.wanted === FILTERS[0][1];
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => { this.text = this.input.value; this.read(); }, 150);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === 'Enter' || event.key === 'ArrowDown') {
      event.preventDefault();
      this.input.blur();
      this.step(1);
    }
  }

  search() {
    this.input.focus();
    this.input.select();
  }

  drawChips() {
    fill(this.chips, FILTERS.map(([name, filter]) => h('button.chip', {
      type: 'button', 'aria-pressed': String(filter === this.filter),
      onclick: () => { this.filter = filter; remember('filter', filter); this.drawChips(); this.read(); },
    }, name, name === 'Waiting' && this.waiting.size > 0 && h('span.count', {}, this.waiting.size))));
  }

  /** Reload the list: busy conversations, then the latest. */
  async read() {
    const generation = ++this.generation;
    /** @type {any[]} */
    const meanwhile = [];
    this.meanwhile = meanwhile;
    this.token = '';
    try {
      const filter = this.wanted, found = new Map();
      const [busy, page] = await Promise.all([
        /[=:<>]/.test(this.text) ? { conversations: [] } : get('conversations', { filter: `(${filter}) AND busy = true`, pageSize: PAGE }),
        get('conversations', { filter, pageSize: PAGE, orderBy: 'update_time desc' }),
      ]);
      if (generation !== this.generation) return;
      for (const each of [...(busy.conversations ?? []), ...(page.conversations ?? [])]) found.set(each.name, each);
      this.all = found;
      this.meanwhile = undefined;
      for (const each of meanwhile) this.take(each);
      this.token = page.nextPageToken ?? '';
      this.error.hidden = true;
      this.sort();
    } catch (error) {
      if (generation !== this.generation) return;
      this.meanwhile = undefined;
      fill(this.error, /** @type {Error} */ (error).message);
      this.error.hidden = false;
    }
  }

  async readMore() {
    if (!this.token || this.reading) return;
    this.reading = true;
    const generation = this.generation;
    try {
      const page = await get('conversations', { filter: this.wanted, pageSize: PAGE, orderBy: 'update_time desc', pageToken: this.token });
      if (generation !== this.generation) return;
      for (const each of page.conversations ?? []) if (!this.all.has(each.name)) this.all.set(each.name, each);
      this.token = page.nextPageToken ?? '';
      this.sort();
    } catch { /* the next scroll tries again */
    } finally {
      this.reading = false;
    }
  }

  async readWaiting() {
    try {
      const { approvals = [] } = await get('conversations/-/approvals', { pageSize: 200 });
      for (const each of approvals) this.waiting.add(each.name.split('/approvals/')[0]);
      this.count();
    } catch { /* the watch tells of the next one */ }
  }

  /** @param {any} line */
  take(line) {
    const { conversationChanged: now, conversationDeleted, conversationUnmatched } = line.event ?? {};
    this.meanwhile?.push(line);
    if (now) {
      const waits = stateWords(now.state).tone === 'ask';
      if (waits !== this.waiting.has(now.name)) {
        if (waits) this.waiting.add(now.name);
        else this.waiting.delete(now.name);
        this.count();
      }
      if (now.parent) return;
      if (this.matches(now)) this.all.set(now.name, now);
      else if (!this.all.delete(now.name)) return;
      nextFrame(() => this.sort());
    } else if (conversationDeleted || conversationUnmatched) {
      this.all.delete(conversationDeleted ?? conversationUnmatched);
      this.waiting.delete(conversationDeleted ?? conversationUnmatched);
      this.count();
      this.sort();
    }
  }

  /** Whether a changed conversation belongs in the list; only the server can evaluate every filter. @param {any} now */
  matches(now) {
    if (this.text.trim()) return this.all.has(now.name);
    if (Boolean(now.archiveTime) !== (this.filter === FILTERS[3][1])) return false;
    if (this.filter === FILTERS[1][1]) return now.state?.kind === 'STATE_KIND_AWAITING_TOOL_APPROVAL';
    return this.filter !== FILTERS[2][1] || Boolean(now.state?.busy);
  }

  count() {
    const waits = this.waiting.size;
    document.title = `${waits ? `(${waits}) ` : ''}Bedrock`;
    this.drawChips();
  }

  sort() {
    const rank = (/** @type {any} */ each) => (stateWords(each.state).tone === 'ask' ? 0 : each.state?.busy ? 1 : 2);
    this.order = [...this.all.values()].sort((one, two) => rank(one) - rank(two) || (two.updateTime ?? '').localeCompare(one.updateTime ?? ''));
    nextFrame(this.draw);
  }

  /** @param {string} id of a conversation, or its slug */
  select(id) {
    this.selected = id;
    nextFrame(this.draw);
  }

  /** @param {any} each */
  isSelected(each) {
    return lastPart(each.name) === this.selected || each.slug === this.selected;
  }

  /** @param {number} by */
  step(by) {
    if (!this.order.length) return;
    const at = this.order.findIndex((each) => this.isSelected(each));
    const next = this.order[Math.max(0, Math.min(this.order.length - 1, at < 0 ? 0 : at + by))];
    location.hash = `#/c/${lastPart(next.name)}`;
    const top = this.order.indexOf(next) * ROW;
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    else if (top + ROW > this.scroll.scrollTop + this.scroll.clientHeight) this.scroll.scrollTop = top + ROW - this.scroll.clientHeight;
  }

  draw() {
    const height = this.scroll.clientHeight;
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - SPARE);
    const last = Math.min(this.order.length, Math.ceil((this.scroll.scrollTop + height) / ROW) + SPARE);
    this.space.style.setProperty('height', `${Math.max(1, this.order.length) * ROW}px`);
    if (last >= this.order.length - 20) this.readMore();
    const seen = new Set();
    for (let at = first; at < last; at += 1) {
      const each = this.order[at];
      seen.add(each.name);
      const key = `${each.revision}|${each.etag}|${JSON.stringify(each.state)}|${this.isSelected(each)}`;
      let found = this.rows.get(each.name);
      if (found?.key !== key) {
        const row = this.row(each);
        if (found) found.row.replaceWith(row);
        else this.space.append(row);
        found = { row, key };
        this.rows.set(each.name, found);
      }
      found.row.style.setProperty('transform', `translateY(${at * ROW}px)`);
    }
    for (const [name, { row }] of this.rows) {
      if (seen.has(name)) continue;
      row.remove();
      this.rows.delete(name);
    }
    document.body.classList.toggle('bare', this.bare);
    if (!this.order.length) this.space.replaceChildren(h('p.empty', { role: 'listitem' }, this.text ? 'Nothing matches.' : 'No conversations here yet.'));
    else this.space.querySelector('.empty')?.remove();
  }

  /** @param {any} each */
  row(each) {
    const { text, tone } = stateWords(each.state), selected = this.isSelected(each);
    const busy = each.state?.busy;
    return h('div.row-item', { role: 'listitem' }, h(`a.conversation-row.${tone}`, { href: `#/c/${lastPart(each.name)}`, 'aria-current': selected ? 'page' : undefined },
      h('span.dot', { class: undefined, 'aria-hidden': 'true' }),
      h('span.name', {}, each.title || slugOf(each)),
      h('time', { title: each.updateTime }, busy ? '' : ago(each.updateTime)),
      h('span.about', {}, tone === 'idle' ? slugOf(each) : text),
      Number(each.totalUsage?.costMicros ?? 0) > 0 && h('span.cost', {}, money(each.totalUsage.costMicros))));
  }
}
