/**
 * Requests are checked before they are sent, because the library that encodes them ignores unknown enum
 * names and fields, and encodes "abc" as the number 0.
 */
import protobuf from 'protobufjs';

const INTEGER = /^[su]?int(32|64)$/;

/** The messages of the contract, for `mistake`. `files` as protoc takes them, to be found in `folders` by `find`. */
export function contractOf(files, find) {
  const root = new protobuf.Root();
  root.resolvePath = (_, file) => find(file) ?? protobuf.util.path.resolve('', file);
  return root.loadSync(files).resolveAll();
}

/** The first mistake in a message, as the path of the field and a text; null if there is none. */
export function mistake(type, value, path = '') {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return wrong(path, value, 'an object');
  for (const [key, given] of Object.entries(value)) {
    if (given === undefined) continue;
    const found = inEntry(type, key, given, path ? `${path}.${key}` : key);
    if (found) return found;
  }
  for (const { name, oneof } of type.oneofsArray) {
    const set = oneof.filter((each) => (value[each] ?? null) !== null);
    if (set.length > 1) return { path: path || name, text: `${set.join(' and ')} are mutually exclusive; give one` };
  }
  return null;
}

/**
 * @typedef {object} Generation How a model answers; omitted settings are left to the model.
 * @property {'none' | 'low' | 'medium' | 'high' | 'max'} [reasoningEffort] The amount of reasoning before an answer.
 * @property {number} [temperature] The sampling temperature, from 0 to 2.
 * @property {number} [maxOutputTokens] Maximum tokens of one answer, including its reasoning.
 *
 * @typedef {object} Choices Short forms for settings of a new conversation.
 * @property {string | { text: string, replace?: boolean }} [instructions] Text for the agent, added to the server's
 *   prompt or, with `replace`, instead of it.
 * @property {string[]} [tools] The server's tools to offer, as 'bash' or 'tools/bash'; [] for none.
 * @property {Generation} [generation] How its model answers.
 */

/**
 * A message's fields with these short forms replaced by the contract's; all other fields are unchanged.
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
    // Received messages can be sent back: in them, a oneof's name contains the name of the field that is set.
    const members = Object.hasOwn(type.oneofs ?? {}, key) && type.oneofs[key].oneof;
    if (members) return members.includes(value) ? null : wrong(path, value, `one of ${members.join(', ')}`);
    const names = Object.keys(type.fields);
    return { path, text: `unknown field; ${names.length ? `choose one of: ${names.join(', ')}` : 'give none'}` };
  }
  // In received messages, null is an unset message.
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
