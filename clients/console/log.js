// @ts-check
// The log: each step with its stored event, context and effects, and the results of verify and
// replay, which runs the log through the state machine again.

import { failure, get, lines, path } from './api.js';
import { fill, h } from './dom.js';
import { clock } from './format.js';
import { toast, tried } from './keys.js';
import { structure } from './structure.js';

const PAGE = 100;

/** @type {import('./views.js').Draw} */
export function drawLog(scope, into, conversation, rest, base) {
  const filter = /** @type {HTMLSelectElement} */ (h('select', { 'aria-label': 'Kind of event', onchange: () => draw() })), verdict = h('p.verdict', { role: 'status' });
  const body = h('ol.log'), more = h('button', { type: 'button', hidden: true, onclick: () => read() }, 'Earlier steps');
  fill(into, h('div.inspector-head', {}, h('div.grow', {}, h('b', {}, 'Log'), verdict), filter,
    h('button', { type: 'button', title: 'Check what is stored', onclick: () => verify() }, 'Verify'), h('button', { type: 'button', title: 'Run the log through the machine again', onclick: () => replay() }, 'Replay')), h('div.inspector-body', {}, body, more));
  /** @type {Map<string, any>} */
  const steps = new Map();
  /** Replay's result for each step. @type {Map<string, any>} */
  const replayed = new Map();
  /** What is drawn. @type {Map<string, {row: HTMLElement, said: any, stored: string}>} */
  const rows = new Map();
  let token = '', wanted = rest[0] ?? '', kinds = '';
  async function read(anew = false) {
    let page;
    try {
      page = await get(`${path(conversation.name)}/transitions`, { pageSize: PAGE, descending: true, pageToken: anew ? '' : token });
    } catch (error) {
      if (/** @type {any} */ (error).status !== 404) return toast(/** @type {Error} */ (error).message, 'error');
      page = { transitions: await fromReplay() }; // of a server that does not list them
    }
    if (scope.over) return;
    for (const each of page.transitions ?? []) steps.set(each.step, each);
    if (!anew || !token) token = page.nextPageToken ?? '';
    more.hidden = !token;
    draw();
  }
  /** The steps as replay returns them, without effects. @returns {Promise<any[]>} */
  async function fromReplay() {
    /** @type {any[]} */
    const found = [];
    await tried(() => stream('', (line) => {
      const { type, at } = parsed(line.eventJson);
      found.push({ ...line, eventType: type ?? 'event', time: typeof at === 'number' ? new Date(at).toISOString() : '' });
    }));
    return found;
  }
  function draw() {
    const all = [...steps.values()].sort((one, two) => Number(two.step) - Number(one.step)), types = [...new Set(all.map((each) => each.eventType))].sort();
    if (types.join() !== kinds) {
      const before = filter.value;
      kinds = types.join();
      fill(filter, h('option', { value: '' }, 'all events'), types.map((each) => h('option', { value: each }, each)));
      filter.value = types.includes(before) ? before : '';
    }
    const shown = all.filter((each) => !filter.value || each.eventType === filter.value);
    fill(body, shown.length ? shown.map(row) : h('li.empty', {}, 'No steps yet: the first message creates one.'));
    if (wanted) {
      const found = document.getElementById(`step-${wanted}`);
      found?.setAttribute('open', '');
      found?.scrollIntoView({ block: 'center' });
      wanted = '';
    }
  }
  /** A step; what is open in it stays open. @param {any} each a Transition */
  function row(each) {
    const said = replayed.get(each.step), before = rows.get(each.step);
    if (before && before.said === said && before.stored === each.eventJson) return before.row;
    const content = h('div.log-body'), details = /** @type {HTMLDetailsElement} */ (h('details', { id: `step-${each.step}`, open: Boolean(before?.row.querySelector('details')?.open), ontoggle: () => { if (details.open && !content.childElementCount) unfold(each, content); } },
      h('summary', {}, h('span.num', {}, each.step), h('b', {}, each.eventType), h('span.small', {}, each.revision ? `revision ${each.revision}` : 'no revision'), h('span.grow'),
        said && h(`span.state.${said.difference ? 'error' : 'done'}`, {}, h('span.dot'), said.difference ? 'differs' : 'as stored'), h('time', { title: each.time }, clock(each.time))), content));
    if (details.open) unfold(each, content);
    const made = h('li', {}, details);
    rows.set(each.step, { row: made, said, stored: each.eventJson });
    return made;
  }
  /** @param {any} each @param {HTMLElement} content */
  function unfold(each, content) {
    const said = replayed.get(each.step), after = h('div');
    fill(content, part('event', each.eventJson), part('effects', each.effectsJson), part('context', each.contextJson), said?.difference && part('difference', said.difference), said && part('state after this step (replayed)', said.stateJson),
      h('div.row', {}, h('a', { href: `${base}/log/${each.step}` }, 'Link to this step'), each.digest && h('code.small', { title: 'The digest that chains the log' }, each.digest.slice(0, 16)),
        Number(each.revision) > 0 && h('button.small', { type: 'button', onclick: () => until(each, after) }, 'Replay up to here')), after);
  }
  /** @param {any} each @param {HTMLElement} after */
  async function until(each, after) {
    /** @type {any} */
    let last;
    await tried(async () => {
      await stream(`untilRevision=${each.revision}`, (line) => { last = line; });
      fill(after, last && part(`state after step ${last.step}, as replayed from the log`, last.stateJson));
    });
  }
  /** @param {string} query @param {(line: any) => void} take */
  async function stream(query, take) {
    const response = await fetch(`/v1/${path(conversation.name)}:replay?${query}`, { headers: { Accept: 'application/x-ndjson' } });
    if (!response.ok) throw await failure(response);
    await lines(response, (line) => { if (line.error) throw new Error(line.error.message); if (!line.end) take(line); });
  }
  async function replay() {
    fill(verdict, 'Replaying…');
    let wrong = 0;
    replayed.clear();
    const done = await tried(async () => { await stream('', (line) => { replayed.set(line.step, line); wrong += line.difference ? 1 : 0; }); return true; });
    fill(verdict, !done ? '' : h(`span.state.${wrong ? 'error' : 'done'}`, {}, h('span.dot'), wrong ? `${wrong} of ${replayed.size} steps differ from what was stored` : `All ${replayed.size} steps replay exactly as stored.`));
    draw();
  }
  async function verify() {
    fill(verdict, 'Verifying…');
    const found = await tried(() => get(`${path(conversation.name)}:verify`));
    const violations = found?.violations ?? [];
    fill(verdict, !found ? '' : h(`span.state.${violations.length ? 'error' : 'done'}`, {}, h('span.dot'), violations.length ? `${violations.length} violation${violations.length === 1 ? '' : 's'}: ${violations.slice(0, 3).join('; ')}` : `No stored data was changed behind the server’s back, up to revision ${found.revision ?? 0}.`));
  }
  read(true);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let due;
  scope.add(() => clearTimeout(due));
  return {
    update: (what) => { if (!due && (what.has('state') || what.has('messages') || what.has('log'))) due = setTimeout(() => { due = undefined; read(true); }, 300); },
    go: (to) => { wanted = to[0] ?? ''; draw(); },
  };
}

/** @param {string} json @returns {any} */
function parsed(json) {
  try {
    return JSON.parse(json);
  } catch {
    return {};
  }
}

/** @param {string} name @param {string | undefined} json */
const part = (name, json) => (json ? structure(json, name) : null);
