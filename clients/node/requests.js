/**
 * Requests are checked before they are sent: the library that encodes them takes a name that does not exist for no
 * name and "abc" for the number 0, and leaves out a field that it does not know.
 */
import protobuf from 'protobufjs';

const INTEGER = /^[su]?int(32|64)$/;

/** The messages of the contract, for `mistake`. `files` as protoc takes them, to be found in `folders` by `find`. */
export function contractOf(files, find) {
  const root = new protobuf.Root();
  root.resolvePath = (_, file) => find(file) ?? protobuf.util.path.resolve('', file);
  return root.loadSync(files).resolveAll();
}

/** What is wrong with a message, as the path of the field and a text; null if nothing is. */
export function mistake(type, value, path = '') {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return wrong(path, value, 'an object');
  for (const [key, given] of Object.entries(value)) {
    if (given === undefined) continue;
    const found = inEntry(type, key, given, path ? `${path}.${key}` : key);
    if (found) return found;
  }
  for (const { name, oneof } of type.oneofsArray) {
    const set = oneof.filter((each) => (value[each] ?? null) !== null);
    if (set.length > 1) return { path: path || name, text: `${set.join(' and ')} exclude each other: give one` };
  }
  return null;
}

/**
 * @typedef {object} Generation How a model is to answer; what is not given is left to the model.
 * @property {'none' | 'low' | 'medium' | 'high' | 'max'} [reasoningEffort] How much to think before an answer.
 * @property {number} [temperature] How freely to choose words, from 0 to 2.
 * @property {number} [maxOutputTokens] Tokens of one answer at most, with its reasoning.
 *
 * @typedef {object} Choices What a conversation may be made of, in short.
 * @property {string | { text: string, replace?: boolean }} [instructions] What to tell the agent beside the server's
 *   prompt or, with `replace`, instead of it.
 * @property {string[]} [tools] The server's tools that it is offered, as 'bash' or 'tools/bash'; [] for none.
 * @property {Generation} [generation] How its model is to answer.
 */

/**
 * Fields of a message with these choices written out as the contract has them; all other fields stay as they are.
 *
 * @param {Choices & Record<string, unknown>} fields
 */
export function writtenOut({ instructions, tools, generation, ...fields }) {
  if (instructions !== undefined) fields.instructions = typeof instructions === 'string' ? { text: instructions } : instructions;
  if (tools !== undefined) fields.tools = Array.isArray(tools) ? { tools: tools.map(toolName) } : tools;
  if (generation !== undefined) fields.generation = generation && { ...generation, ...effortOf(generation) };
  return fields;
}

const toolName = (name) => (typeof name === 'string' && !name.startsWith('tools/') ? `tools/${name}` : name);

function effortOf({ reasoningEffort: effort }) {
  if (typeof effort !== 'string') return {};
  return { reasoningEffort: effort.startsWith('REASONING_') ? effort : `REASONING_EFFORT_${effort.toUpperCase()}` };
}

function inEntry(type, key, value, path) {
  const field = Object.hasOwn(type.fields, key) && type.fields[key];
  if (!field) {
    // What the server has sent may be sent back: there, the name of a oneof holds the name of the field that is set.
    const members = Object.hasOwn(type.oneofs ?? {}, key) && type.oneofs[key].oneof;
    if (members) return members.includes(value) ? null : wrong(path, value, `one of ${members.join(', ')}`);
    const names = Object.keys(type.fields);
    return { path, text: `there is no such field; ${names.length ? `choose one of: ${names.join(', ')}` : 'give none'}` };
  }
  // In what the server has sent, null is a message that is not set.
  if (value === null && !field.map && !field.repeated && field.resolvedType instanceof protobuf.Type) return null;
  const plain = typeof value === 'object' && value !== null && !Array.isArray(value);
  if (field.map && !plain) return wrong(path, value, 'an object');
  if (field.repeated && !Array.isArray(value)) return wrong(path, value, 'an array');
  if (!field.map && !field.repeated) return inValue(field, value, path);
  for (const [index, each] of Object.entries(value)) {
    const found = inValue(field, each, field.map ? `${path}.${index}` : `${path}[${index}]`);
    if (found) return found;
  }
  return null;
}

function inValue({ type, resolvedType }, value, path) {
  if (resolvedType instanceof protobuf.Type) return mistake(resolvedType, value, path);
  if (resolvedType instanceof protobuf.Enum) {
    const names = Object.keys(resolvedType.values);
    const known = names.filter((name) => !name.endsWith('_UNSPECIFIED'));
    return names.includes(value) ? null : wrong(path, value, `one of ${known.join(', ')}`);
  }
  if (type === 'string') return typeof value === 'string' ? null : wrong(path, value, 'a string');
  if (type === 'bool') return typeof value === 'boolean' ? null : wrong(path, value, 'true or false');
  if (type === 'bytes') return value instanceof Uint8Array ? null : wrong(path, value, 'a Buffer');
  if (INTEGER.test(type)) return Number.isSafeInteger(value) ? null : wrong(path, value, 'a whole number');
  return typeof value === 'number' ? null : wrong(path, value, 'a number');
}

function wrong(path, value, wanted) {
  return { path: path || 'request', text: `${JSON.stringify(value) ?? String(value)} is not ${wanted}` };
}
