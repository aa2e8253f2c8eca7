// @ts-check
// Views for operators: the servers of the cluster, and who did what.

import { get } from './api.js';
import { fill, h, icon, ICONS } from './dom.js';
import { exactly, lastPart, short, word, words } from './format.js';

/** @param {import('./dom.js').Scope} scope @param {HTMLElement} into */
export function drawNodes(scope, into) {
  const body = h('div.scroll', { tabindex: 0, role: 'group', 'aria-label': 'Table' }), quotas = h('div.scroll', { tabindex: 0, role: 'group', 'aria-label': 'Table' });
  fill(into, h('div.page', {}, title('Nodes'), h('p.lead', {}, 'The servers that share the database. Each conversation has one owner; if the lease of a node expires, its conversations are released.'), body, h('h2', {}, 'Quotas'), quotas));
  const read = async () => {
    try {
      const [{ nodes = [] }, { quotas: limits = [] }] = await Promise.all([get('nodes'), get('quotas')]);
      if (scope.over) return;
      const most = Math.max(1, ...nodes.map((/** @type {any} */ each) => Number(each.activeConversations ?? 0)));
      fill(body, table(['node', 'address', 'version', 'awake', 'lease', 'workspaces'], nodes.map((/** @type {any} */ each) => [
        each.name || (each.incarnation ? `#${each.incarnation}` : 'this server'), each.address || 'this machine only', each.version,
        h('div.load', {}, h('div.bar', {}, h('div.fill', { style: { width: `${(100 * Number(each.activeConversations ?? 0)) / most}%` } })), each.activeConversations ?? '0'),
        h(`span.state.${each.draining ? 'cancel' : each.answering ? 'done' : 'error'}`, {}, h('span.dot'), each.draining ? 'draining' : each.answering ? 'answers' : 'silent'), (each.workspaces ?? []).join(', ') || 'all'])));
      fill(quotas, limits.length ? table(['principal', 'quota', 'used', 'limit'], limits.map((/** @type {any} */ each) => [each.principal, word(each.quota, ''), each.used ?? '0', each.limit ?? '0'])) : h('p.empty', {}, 'No quotas. Set them per principal in the settings.'));
    } catch (error) {
      fill(body, h('p.warn', {}, /** @type {Error} */ (error).message));
    }
  };
  read();
  scope.every(5_000, read);
}

/** @param {import('./dom.js').Scope} scope @param {HTMLElement} into */
export function drawAudit(scope, into) {
  const body = h('div.scroll', { tabindex: 0, role: 'group', 'aria-label': 'Table' }), more = h('button', { type: 'button', hidden: true, onclick: () => read() }, 'Later entries');
  const principal = /** @type {HTMLInputElement} */ (h('input', { placeholder: 'principal', 'aria-label': 'Principal', onchange: () => read(true) }));
  const outcome = /** @type {HTMLSelectElement} */ (h('select', { 'aria-label': 'Outcome', onchange: () => read(true) }, h('option', { value: '' }, 'accepted and refused'), h('option', { value: 'OUTCOME_ACCEPTED' }, 'accepted'), h('option', { value: 'OUTCOME_REFUSED' }, 'refused')));
  const since = /** @type {HTMLSelectElement} */ (h('select', { 'aria-label': 'Since', onchange: () => read(true) }, SINCE.map(([name, hours]) => h('option', { value: String(hours), selected: hours === 24 }, name))));
  let start = '';
  fill(into, h('div.page', {}, title('Audit'), h('p.lead', {}, 'Who did what, and what was refused.'), h('div.row', {}, principal, outcome, since), body, more));
  /** @type {any[]} */
  let entries = [];
  let token = '';
  async function read(anew = false) {
    if (anew) start = Number(since.value) ? new Date(Date.now() - Number(since.value) * 3_600_000).toISOString() : '';
    try {
      const page = await get('auditEntries', { pageSize: 100, pageToken: anew ? '' : token, startTime: start, principal: principal.value.trim(), outcome: outcome.value });
      if (scope.over) return;
      entries = anew ? page.entries ?? [] : [...entries, ...(page.entries ?? [])];
      token = page.nextPageToken ?? '';
      more.hidden = !token;
      fill(body, entries.length ? table(['time', 'outcome', 'call', 'conversation', 'who', 'role'], entries.map((each) => [
        h('time', {}, exactly(each.time)),
        h(`span.state.${each.outcome === 'OUTCOME_REFUSED' ? 'error' : 'done'}`, { title: decisions(each) }, h('span.dot'), each.outcome === 'OUTCOME_REFUSED' ? word(each.reason, 'REFUSAL_REASON') || 'refused' : decisions(each) || 'accepted'),
        h('span', {}, lastPart(each.method), each.count > 1 && ` ×${each.count}`), each.conversation && h('a', { href: `#/c/${lastPart(each.conversation)}` }, lastPart(each.conversation)), each.principal, each.role])) : h('p.empty', {}, 'No entries match.'));
    } catch (error) {
      fill(body, h('p.warn', {}, /** @type {Error} */ (error).message));
    }
  }
  read(true);
}

/** From when on entries are shown, in hours; the oldest is first. @type {[string, number][]} */
const SINCE = [['the last hour', 1], ['the last day', 24], ['the last week', 168], ['everything', 0]];

const VERDICTS = /** @type {Record<string, string>} */ (words({ VERDICT_RUN: 'allowed', VERDICT_ASK: 'asked' }));

/** @param {any} entry */
const decisions = (entry) => short((entry.decisions ?? []).map((/** @type {any} */ each) => [lastPart(each.tool), VERDICTS[each.verdict] ?? word(each.verdict, 'VERDICT')].filter(Boolean).join(': ')).join(', '), 60);

/** @param {string[]} heads @param {any[][]} rows */
export function table(heads, rows) {
  return h('table.data', {}, h('thead', {}, h('tr', {}, heads.map((each) => h('th', { scope: 'col' }, each)))), h('tbody', {}, rows.map((row) => h('tr', {}, row.map((each) => h('td', {}, each ?? ''))))));
}

/** With a link back where the list is not visible. @param {string} text */
const title = (text) => h('div.row', {}, h('a.back', { href: '#/', 'aria-label': 'All conversations' }, icon(ICONS.back)), h('h1', {}, text));
