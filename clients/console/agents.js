// @ts-check
// A live tree of a conversation's sub-agents, with the work and cost of each.

import { get } from './api.js';
import { fill, h, nextFrame } from './dom.js';
import { feed } from './feed.js';
import { ago, duration, lastPart, money, ms, stateWords, tokens } from './format.js';

/** @type {import('./views.js').Draw} */
export function drawAgents(scope, into, conversation) {
  const body = h('div.inspector-body');
  fill(into, h('div.inspector-head', {}, h('div.grow', {}, h('b', {}, 'Sub-agents'), h('p.small', {}, 'Each is a separate conversation: open it to see what it does.'))), body);
  /** Children, by parent. @type {Map<string, any[]>} */
  const children = new Map();
  const read = async (/** @type {string} */ parent) => {
    try {
      const { conversations = [] } = await get('conversations', { parent, pageSize: 100, orderBy: 'create_time' });
      children.set(parent, conversations);
      await Promise.all(conversations.slice(0, 20).map((/** @type {any} */ each) => !children.has(each.name) && /-a\d+$/.test(each.name) && each.state?.kind === 'STATE_KIND_AWAITING_SUB_AGENTS' && read(each.name)));
    } catch { /* the next change reads again */ }
    if (!scope.over) nextFrame(draw);
  };
  const draw = () => {
    const found = children.get(conversation.name) ?? [];
    fill(body, found.length ? tree(conversation.info, 0) : h('div.blank', {}, h('h2', {}, 'No sub-agents'), h('p', {}, 'An agent starts them for independent tasks; you can start some from the menu above.')));
  };
  const tree = (/** @type {any} */ each, /** @type {number} */ depth) => {
    const { text, tone } = stateWords(each.state), below = children.get(each.name) ?? [], over = ['done', 'error', 'idle'].includes(tone);
    const end = over ? ms(each.state?.enterTime) : Date.now(), usage = each.totalUsage ?? {};
    /** @type {HTMLElement} */
    const made = h('div.branch', {}, h(`a.agent-card.${tone}`, { href: `#/c/${lastPart(each.name)}` },
      h('span.state', {}, h('span.dot'), text), h('b', {}, each.title || (depth ? `agent ${lastPart(each.name).replace(/^.*-a/, '')}` : 'this conversation')),
      h('span.small', {}, depth ? duration(end - ms(each.createTime)) : ago(each.createTime), ` · ${tokens(Number(usage.inputTokens ?? 0) + Number(usage.outputTokens ?? 0))} tokens`, Number(usage.costMicros ?? 0) > 0 && ` · ${money(usage.costMicros)}`),
      (each.state?.completed?.result || each.state?.failed?.error?.message) && h('p.plain', {}, (each.state.completed?.result ?? each.state.failed.error.message).slice(0, 600))),
    below.length > 0 && h('div.branches', {}, below.map((child) => tree(child, depth + 1))));
    return made;
  };
  read(conversation.name);
  scope.add(feed.watch((line) => {
    const now = line.event?.conversationChanged;
    if (!now?.parent || !(now.parent === conversation.name || children.has(now.parent))) return;
    const siblings = children.get(now.parent) ?? [], at = siblings.findIndex((each) => each.name === now.name);
    if (at < 0) siblings.push(now);
    else siblings[at] = now;
    children.set(now.parent, siblings);
    nextFrame(draw);
  }));
  scope.every(1_000, () => conversation.busy && draw());
  return { update: (what) => { if (what.has('all') || what.has('state')) nextFrame(draw); } };
}
