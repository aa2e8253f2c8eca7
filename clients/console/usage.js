// @ts-check
// The cost of a conversation: tokens by kind and request, the cache, the window and the budget.

import { get, path } from './api.js';
import { fill, h } from './dom.js';
import { clock, exactly, lastPart, marks, money, tokens } from './format.js';

/** @type {[string, string][]} */
const PARTS = [['inputTokens', 'input'], ['cacheReadTokens', 'read from the cache'], ['cacheWriteTokens', 'written to the cache'], ['outputTokens', 'output']];

/** @type {import('./views.js').Draw} */
export function drawUsage(scope, into, conversation, _rest, base) {
  const body = h('div.inspector-body');
  fill(into, h('div.inspector-head', {}, h('div.grow', {}, h('b', {}, 'Context and cost'))), body);
  /** @type {any[]} */
  let rounds = [];
  const read = async () => {
    try {
      const { requestCycles = [] } = await get(`${path(conversation.name)}/requestCycles`, { view: 'VIEW_ROUNDS', pageSize: 50, descending: true });
      rounds = requestCycles.reverse().flatMap((/** @type {any} */ cycle) => (cycle.rounds ?? []).map((/** @type {any} */ each) => ({ ...each, cycle: cycle.name }))).filter((/** @type {any} */ each) => each.usage);
    } catch { /* the sums are there without the requests */ }
    if (!scope.over) draw();
  };
  const draw = () => {
    const { info } = conversation, total = info.totalUsage ?? {}, aside = info.asideUsage ?? {}, window = info.contextUsage ?? {}, budget = info.budget ?? {};
    const read_ = Number(total.cacheReadTokens ?? 0), all = read_ + Number(total.inputTokens ?? 0) + Number(total.cacheWriteTokens ?? 0);
    fill(body, h('div.tiles', {}, tile(money(total.costMicros), 'cost'), tile(tokens(all), 'tokens in'), tile(tokens(total.outputTokens), 'tokens out'), tile(all ? `${Math.round((100 * read_) / all)}%` : '–', 'of input from the cache'), tile(tokens(Number(aside.inputTokens ?? 0) + Number(aside.outputTokens ?? 0)), 'other: titles, excerpts')),
      h('section', {}, h('h3', {}, 'Window'), meter(Number(window.usedTokens ?? 0), Number(window.usableWindowTokens ?? 0), Number(window.fixedTokens ?? 0)), h('p.small', {}, `${tokens(window.usedTokens)} of ${tokens(window.usableWindowTokens)} tokens, ${tokens(window.fixedTokens)} of them instructions and tools${window.assumed ? '; the window is assumed' : ''}`)),
      h('section', {}, h('h3', {}, 'Budget'), Number(budget.conversationTokens) || Number(budget.conversationCostMicros) || Number(budget.runTokens) ? [
        Number(budget.conversationTokens) > 0 && left('Tokens of the conversation', all + Number(total.outputTokens ?? 0), Number(budget.conversationTokens), tokens),
        Number(budget.conversationCostMicros) > 0 && left('Cost of the conversation', Number(total.costMicros ?? 0), Number(budget.conversationCostMicros), money),
        Number(budget.runTokens) > 0 && h('p.small', {}, `${tokens(budget.runTokens)} tokens per run`)] : h('p.small', {}, 'No budget is set. With one, a run stops before its next model request once the budget is spent.')),
      h('section', {}, h('h3', {}, 'Requests'), rounds.length ? chart(rounds, base, body.clientWidth) : h('p.small', {}, 'No answers yet.')));
  };
  read();
  let width = 0;
  const size = new ResizeObserver(() => { if (body.clientWidth !== width) draw(); width = body.clientWidth; });
  size.observe(body);
  scope.add(() => size.disconnect());
  return { update: (what) => { if (what.has('all') || what.has('messages')) read(); else if (what.has('info')) draw(); } };
}

/** @param {string} value @param {string} about */
const tile = (value, about) => h('div.tile', {}, h('b', {}, value), h('span', {}, about));

/** @param {number} used @param {number} all @param {number} fixed */
function meter(used, all, fixed) {
  const share = (/** @type {number} */ part) => `${all ? Math.min(100, (100 * part) / all) : 0}%`;
  return h('div.meter', { role: 'img', 'aria-label': `${used} of ${all} tokens` }, h('div.c-fixed', { style: { width: share(Math.min(fixed, used)) } }), h('div.c-used', { style: { width: share(Math.max(0, used - fixed)) } }));
}

/** @param {string} title @param {number} spent @param {number} all @param {(value: number) => string} say */
const left = (title, spent, all, say) => h('div', {}, h('p', {}, `${title}: ${say(Math.max(0, all - spent))} of ${say(all)} left`), meter(spent, all, 0));

const HIGH_PX = 166, COLUMN_PX = 34, GAP_PX = 3, TIME_PX = 116, SIDES_PX = 110;

/** The tokens of each request over time. @param {any[]} rounds @param {string} base @param {number} wide the pixels that there are */
function chart(rounds, base, wide) {
  const shown = rounds.slice(-80), sum = (/** @type {any} */ usage) => PARTS.reduce((all, [key]) => all + Number(usage[key] ?? 0), 0), most = Math.max(1, ...shown.map((each) => sum(each.usage)));
  const rough = marks(most, 4), step = rough[1] ?? 1, end = Math.ceil(most / step) * step, scale = marks(end, end / step);
  const room = Math.max(1, wide - SIDES_PX), column = Math.min(COLUMN_PX + GAP_PX, room / shown.length), every = Math.max(1, Math.ceil(TIME_PX / column));
  return [h('div.chart', { role: 'group', 'aria-label': `Tokens of the last ${shown.length} requests` },
    h('div.unit', {}, 'tokens'),
    h('div.scale', { style: { height: `${HIGH_PX}px` } }, scale.map((each) => h('div', { style: { bottom: `${(100 * each) / end}%` } }, h('span', {}, tokens(each))))),
    h('div.columns', { style: { height: `${HIGH_PX}px` } }, shown.map((each) => h('a.column', { href: `${base}/timeline/${encodeURIComponent(lastPart(each.cycle))}`, 'aria-label': `${clock(each.outputTime)}: ${tokens(sum(each.usage))} tokens`,
      title: `${exactly(each.outputTime)}\n${PARTS.map(([key, name]) => `${name}: ${each.usage[key] ?? 0}`).join('\n')}\n${money(each.usage.costMicros)}` },
    PARTS.map(([key]) => h(`div.u-${key}`, { style: { height: `${(100 * Number(each.usage[key] ?? 0)) / end}%` } }))))),
    h('div.times', {}, shown.map((each, index) => index % every === 0 && h('time', { style: { left: `${index * column}px` } }, clock(each.outputTime))))),
  h('ul.legend', {}, PARTS.map(([key, name]) => h('li', {}, h(`span.swatch.u-${key}`), name, h('b', {}, tokens(shown.reduce((all, each) => all + Number(each.usage[key] ?? 0), 0))))))];
}
