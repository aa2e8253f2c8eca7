// @ts-check
// The state machine as the core has it (machine.json is made from its code), with the path of a run and the current
// state highlighted.

import { fill, h, s } from './dom.js';
import { history } from './events.js';
import { lastPart, stateWords, words } from './format.js';
import { HIGH, middle, rounded, routed, WIDE } from './routes.js';
import { runsOf } from './runs.js';

/** The position of each state: column and row. @type {Record<string, [number, number]>} */
const PLACES = words({
  ContextExhausted: [0, 0], AwaitingContinuation: [1, 0], Error: [2, 0], AwaitingSubAgents: [3, 0],
  Cancelling: [0, 1], Idle: [1, 1], AwaitingLlm: [2, 1], ToolExecuting: [3, 1],
  Completed: [0, 2], Failed: [1, 2], LlmRequesting: [2, 2], AwaitingToolApproval: [3, 2],
});
/** @type {Promise<any> | undefined} */
let machine;

/** @param {string} kind STATE_KIND_LLM_REQUESTING → LlmRequesting */
const nameOf = (kind) => kind.replace('STATE_KIND_', '').toLowerCase().replaceAll(/(^|_)(\w)/g, (_, _bar, letter) => letter.toUpperCase());

/** What people call a state of the core. @param {string} name LlmRequesting */
const called = (name) => stateWords({ kind: `STATE_KIND_${name.replaceAll(/(?<=.)[A-Z]/g, '_$&').toUpperCase()}` }).text;

/** @type {import('./views.js').Draw} */
export function drawMachine(scope, into, conversation, rest, base) {
  const head = h('div.inspector-head'), body = h('div.inspector-body'), about = h('section', { 'aria-live': 'polite' });
  fill(into, head, body);
  let chosen = rest[0] ?? '', picked = '';
  const draw = async () => {
    machine ??= fetch('/console/machine.json').then((answer) => answer.json());
    const [{ edges, matrix }, { events }] = await Promise.all([machine, history(conversation)]);
    if (scope.over) return;
    const runs = runsOf(events), found = runs.find((each) => lastPart(each.name) === chosen) ?? runs.at(-1);
    const live = nameOf(conversation.state.kind ?? ''), path = ['Idle', ...(found?.path ?? []).map(nameOf)], taken = counted(path);
    fill(head, h('div.grow', {}, h('b', {}, 'State machine'), h('p.small', {}, 'Arrows are the possible transitions; the run’s path is highlighted, with the number of times it took each one.')),
      runs.length > 0 && h('select', { 'aria-label': 'Run', onchange: (/** @type {any} */ event) => { location.hash = `${base}/machine/${encodeURIComponent(event.target.value)}`; } },
        runs.map((each, index) => h('option', { value: lastPart(each.name), selected: each === found }, `${index + 1}: ${each.text.slice(0, 40) || 'run'}`))));
    const tell = (/** @type {string} */ state) => { picked = state; told(about, state, matrix); };
    fill(body, h('div.scroll', { tabindex: 0, role: 'group', 'aria-label': 'Diagram' }, picture(edges, live, path, taken, tell)), found && h('p.path-words', {}, steps(path)), about);
    told(about, picked || live, matrix);
  };
  draw();
  return { update: (what) => { if (what.has('all') || what.has('state') || what.has('stops')) draw(); }, go: (to) => { chosen = to[0] ?? ''; draw(); } };
}

/** @param {string[]} path */
function counted(path) {
  /** @type {Map<string, number>} */
  const found = new Map();
  for (let at = 1; at < path.length; at += 1) if (path[at] !== path[at - 1]) found.set(`${path[at - 1]} ${path[at]}`, (found.get(`${path[at - 1]} ${path[at]}`) ?? 0) + 1);
  return found;
}

/** The states in order, consecutive repetitions merged. @param {string[]} path */
function steps(path) {
  const turns = path.filter((each, index) => each !== path[index - 1]), shown = turns.slice(-40);
  return [turns.length > shown.length && '… → ', ...shown.flatMap((each, index) => [index > 0 && ' → ', h('span.step', { title: each }, called(each))])];
}

/** @param {any[]} edges @param {string} live @param {string[]} path @param {Map<string, number>} taken @param {(state: string) => void} tell */
function picture(edges, live, path, taken, tell) {
  const visited = new Set(path), all = edges.filter((/** @type {any} */ each) => PLACES[each.from] && PLACES[each.to] && each.from !== each.to);
  const known = new Set(all.map((/** @type {any} */ each) => `${each.from} ${each.to}`));
  for (const key of taken.keys()) if (!known.has(key)) { const [from, to] = key.split(' '); if (PLACES[from] && PLACES[to]) all.push({ from, to, events: ['several steps of one commit'] }); }
  const times = (/** @type {any} */ each) => taken.get(`${each.from} ${each.to}`) ?? 0;
  const { width, height, boxes, arrows } = routed(PLACES, all);
  arrows.sort((one, two) => times(one.edge) - times(two.edge));
  return s('svg.machine', { viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': 'State diagram' },
    s('defs', {}, ['plain', 'lit'].map((each) => s('marker', { id: `arrow-${each}`, viewBox: '0 0 8 8', refX: 7, refY: 4, markerUnits: 'userSpaceOnUse', markerWidth: each === 'lit' ? 12 : 8, markerHeight: each === 'lit' ? 12 : 8, orient: 'auto-start-reverse' }, s(`path.arrow.${each}`, { d: 'M0 0 8 4 0 8z' })))),
    arrows.map(({ edge, points }) => arrow(edge, points, times(edge))),
    [...boxes].map(([name, [x, y]]) => s(`g.node${name === live ? '.live' : ''}${visited.has(name) ? '.visited' : ''}`, {
      transform: `translate(${x} ${y})`, tabindex: 0, role: 'button', 'aria-current': name === live && 'true',
      onclick: () => tell(name), onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); tell(name); } },
    }, s('rect', { width: WIDE, height: HIGH, rx: 12 }), s('text', { x: WIDE / 2, y: HIGH / 2 - 1 }, called(name)), ' ', s('text.core', { x: WIDE / 2, y: HIGH / 2 + 13 }, name))));
}

/** @param {any} each @param {import('./routes.js').Point[]} points @param {number} times */
function arrow(each, points, times) {
  const [x, y] = middle(points);
  return s(`g.edge${times ? '.lit' : ''}`, {}, s('title', {}, `${called(each.from)} → ${called(each.to)}: ${each.events.join(', ')}`), s('path.reach', { d: rounded(points) }), s('path.line', { d: rounded(points), 'marker-end': `url(#arrow-${times ? 'lit' : 'plain'})` }),
    times > 0 && s('g.times', { transform: `translate(${x} ${y})` }, s('circle', { r: 9 }), s('text', { y: 4 }, times)));
}

/** How a state handles each event. @param {HTMLElement} about @param {string} state @param {any} matrix */
function told(about, state, matrix) {
  const rows = Object.entries(matrix).map(([event, cells]) => /** @type {[string, string[]]} */ ([event, cells[state] ?? []])).filter(([, cells]) => cells.some((each) => each !== '·'));
  fill(about, state && h('h3', {}, `${called(state)} (${state}): possible events`), rows.length > 0 && h('table.data', {}, h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'event'), h('th', { scope: 'col' }, 'leads to'), h('th', { scope: 'col' }, 'refused as'))), h('tbody', {}, rows.map(([event, cells]) => h('tr', {},
    h('td', {}, event), h('td', {}, cells.filter((each) => /^[A-Z][a-z]|^stays/.test(each)).map((each) => (each === 'stays' ? each : called(each))).join(', ')), h('td', {}, h('span.small', {}, cells.filter((each) => /^[A-Z_]+$/.test(each)).join(', ').toLowerCase().replaceAll('_', ' '))))))));
}
