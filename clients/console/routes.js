// @ts-check
// Routes of a diagram's arrows: through the channels between the boxes, each in a lane of its own.

export const WIDE = 160, HIGH = 44;
const LANE = 10, MARGIN = 17, LEAST = 54, OUTER = 12, TIP = 3;

/** @typedef {{from: string, to: string}} Edge */
/** @typedef {[number, number]} Point */
/** @typedef {{ends: [number, number], take: (lane: number) => void}} Interval */

/**
 * Where everything of a diagram is: the corner of each box, and the corners of each arrow.
 * @template {Edge} T
 * @param {Record<string, [number, number]>} places column and row of each box @param {T[]} edges
 * @returns {{width: number, height: number, boxes: Map<string, Point>, arrows: {edge: T, points: Point[]}[]}}
 */
export function routed(places, edges) {
  const columns = 1 + Math.max(...Object.values(places).map(([column]) => column)), rows = 1 + Math.max(...Object.values(places).map(([, row]) => row));
  /** Of each channel: how many lanes it needs, and what leaves or crosses it at each box. @type {Map<string, any[]>} */
  const slots = new Map();
  const slot = (/** @type {string} */ key, /** @type {any} */ entry) => { slots.set(key, [...(slots.get(key) ?? []), entry]); return entry; };
  const beside = channels(columns), between = channels(rows);
  const plans = edges.map((edge) => {
    const [c1, r1] = places[edge.from], [c2, r2] = places[edge.to];
    /** @type {any} */
    const plan = { edge, c1, r1, c2, r2 };
    if (r1 === r2 && Math.abs(c1 - c2) === 1) return { ...plan, across: slot(`across ${r1} ${Math.max(c1, c2)}`, { toward: c1 - c2 }) };
    const straight = c1 === c2 && Math.abs(r1 - r2) === 1, outer = r1 === r2 && (r1 === 0 ? 0 : r1 + 1);
    plan.h1 = outer === false ? (r2 > r1 ? r1 + 1 : r1) : outer;
    plan.h2 = outer === false ? (r2 > r1 ? r2 : r2 + 1) : outer;
    if (straight) return { ...plan, down: slot(`${c1} ${plan.h1}`, { toward: c1 }) };
    if (plan.h1 !== plan.h2) {
      plan.v = c1 < c2 || (c1 === c2 && c1 + 1 < columns) ? c1 + 1 : c1;
      beside[plan.v].push({ ends: [Math.min(plan.h1, plan.h2), Math.max(plan.h1, plan.h2)], take: (lane) => { plan.lane = lane; } });
    }
    plan.out = slot(`${c1} ${plan.h1}`, { toward: plan.v === undefined ? c2 : plan.v - 0.5 });
    plan.into = slot(`${c2} ${plan.h2}`, { toward: plan.v === undefined ? c1 : plan.v - 0.5 });
    return plan;
  });
  const sides = beside.map((each, index) => Math.max(index % columns ? LEAST : OUTER, room(lanes(each, 0))));
  const x = (/** @type {number} */ column) => sum(sides, column) + column * WIDE;
  for (const [key, found] of slots) {
    found.sort((one, two) => one.toward - two.toward);
    const column = Number(key.split(' ')[0]);
    found.forEach((each, index) => { each.share = (index + 1) / (found.length + 1); each.x = x(column) + WIDE * each.share; });
  }
  for (const plan of plans) {
    if (plan.across || plan.down) continue;
    const start = plan.out.x, end = plan.into.x;
    plan.x = plan.v === undefined ? 0 : x(plan.v) - sides[plan.v] + MARGIN + plan.lane * LANE;
    const turn = plan.v === undefined ? end : plan.x;
    between[plan.h1].push({ ends: [Math.min(start, turn), Math.max(start, turn)], take: (lane) => { plan.first = lane; } });
    if (plan.v !== undefined) between[plan.h2].push({ ends: [Math.min(turn, end), Math.max(turn, end)], take: (lane) => { plan.second = lane; } });
  }
  const levels = between.map((each, index) => Math.max(index % rows ? LEAST : OUTER, room(lanes(each, LANE))));
  const y = (/** @type {number} */ row) => sum(levels, row) + row * HIGH, lane = (/** @type {number} */ channel, /** @type {number} */ at) => y(channel) - levels[channel] + MARGIN + at * LANE;
  const arrows = plans.map((plan) => {
    const { edge, c1, r1, c2, r2, h1, h2 } = plan, right = c2 > c1, below = h1 > r1;
    if (plan.across) {
      const at = y(r1) + HIGH * plan.across.share;
      return { edge, points: /** @type {Point[]} */ ([[x(c1) + (right ? WIDE : 0), at], [x(c2) + (right ? -TIP : WIDE + TIP), at]]) };
    }
    const begin = y(r1) + (below ? HIGH : 0), end = h2 > r2 ? y(r2) + HIGH + TIP : y(r2) - TIP;
    if (plan.down) return { edge, points: /** @type {Point[]} */ ([[plan.down.x, begin], [plan.down.x, end]]) };
    const first = lane(h1, plan.first), points = [[plan.out.x, begin], [plan.out.x, first]];
    if (plan.v !== undefined) points.push([plan.x, first], [plan.x, lane(h2, plan.second)], [plan.into.x, lane(h2, plan.second)]);
    else points.push([plan.into.x, first]);
    return { edge, points: /** @type {Point[]} */ ([...points, [plan.into.x, end]]) };
  });
  const boxes = new Map(Object.entries(places).map(([name, [column, row]]) => [name, /** @type {Point} */ ([x(column), y(row)])]));
  return { width: x(columns), height: y(rows), boxes, arrows };
}

/** Around and between boxes. @param {number} boxes @returns {Interval[][]} */
const channels = (boxes) => Array.from({ length: boxes + 1 }, () => []);

/** @param {number[]} sizes @param {number} last */
const sum = (sizes, last) => sizes.slice(0, last + 1).reduce((all, each) => all + each, 0);

/** @param {number} count of lanes */
const room = (count) => (count ? 2 * MARGIN + (count - 1) * LANE : 0);

/** Give each interval a lane in which it touches no other. @param {Interval[]} intervals @param {number} gap @returns {number} how many lanes there are */
function lanes(intervals, gap) {
  /** @type {[number, number][][]} */
  const taken = [];
  for (const { ends: [from, to], take } of intervals.sort((one, two) => one.ends[1] - one.ends[0] - (two.ends[1] - two.ends[0]))) {
    let at = taken.findIndex((lane) => lane.every(([begin, end]) => to + gap < begin || end + gap < from));
    if (at < 0) at = taken.push([]) - 1;
    taken[at].push([from, to]);
    take(at);
  }
  return taken.length;
}

/** A line with rounded corners. @param {Point[]} points */
export function rounded(points) {
  let d = `M${points[0]}`;
  for (let at = 1; at < points.length; at += 1) {
    const [x, y] = points[at], next = points[at + 1];
    if (!next) return `${d}L${x} ${y}`;
    const [px, py] = points[at - 1], before = Math.hypot(x - px, y - py), after = Math.hypot(next[0] - x, next[1] - y), radius = Math.min(6, before / 2, after / 2);
    if (!radius) continue;
    d += `L${x - ((x - px) / before) * radius} ${y - ((y - py) / before) * radius}Q${x} ${y} ${x + ((next[0] - x) / after) * radius} ${y + ((next[1] - y) / after) * radius}`;
  }
  return d;
}

/** The middle of the longest part of a line. @param {Point[]} points @returns {Point} */
export function middle(points) {
  let found = points[0], most = -1;
  for (let at = 1; at < points.length; at += 1) {
    const [one, two] = [points[at - 1], points[at]], long = Math.hypot(two[0] - one[0], two[1] - one[1]);
    if (long > most) [most, found] = [long, [(one[0] + two[0]) / 2, (one[1] + two[1]) / 2]];
  }
  return found;
}
