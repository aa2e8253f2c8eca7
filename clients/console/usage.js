// @ts-check
// The cost of a conversation: tokens by kind and request, the cache, the window and the budget.

import { get, path } from './api.js';
import { fill, h } from './dom.js';
import { lastPart, money, tokens, clock } from './format.js';

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
        Number(budget.runTokens) > 0 && h('p.small', {}, `${tokens(budget.runTokens)} tokens for each run`)] : h('p.small', {}, 'No budget is set. With one, a run stops at its next model request once the budget is spent.')),
      h('section', {}, h('h3', {}, 'Requests'), rounds.length ? chart(rounds, base) : h('p.small', {}, 'No answers yet.')));
  };
  draw();
  read();
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

/** @param {any[]} rounds @param {string} base */
function chart(rounds, base) {
  const shown = rounds.slice(-80), sum = (/** @type {any} */ usage) => PARTS.reduce((all, [key]) => all + Number(usage[key] ?? 0), 0), most = Math.max(1, ...shown.map((each) => sum(each.usage)));
  return [h('div.chart', { role: 'group', 'aria-label': `Tokens of the last ${shown.length} requests` }, shown.map((each) => h('a.column', { href: `${base}/timeline/${encodeURIComponent(lastPart(each.cycle))}`, 'aria-label': `${clock(each.outputTime)}: ${tokens(sum(each.usage))} tokens`,
    title: `${clock(each.outputTime)}\n${PARTS.map(([key, name]) => `${name}: ${each.usage[key] ?? 0}`).join('\n')}\n${money(each.usage.costMicros)}` },
  PARTS.map(([key]) => h(`div.u-${key}`, { style: { height: `${(100 * Number(each.usage[key] ?? 0)) / most}%` } }))))),
  h('ul.legend', {}, PARTS.map(([key, name]) => h('li', {}, h(`span.swatch.u-${key}`), name, h('b', {}, tokens(shown.reduce((all, each) => all + Number(each.usage[key] ?? 0), 0))))))];
}
