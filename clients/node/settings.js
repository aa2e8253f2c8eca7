/**
 * Address and credentials, as in every Bedrock client: from arguments, then the environment, then the files that a server of
 * this machine has written into its data directory, if no other user can have written them.
 */
import { closeSync, constants, fstatSync, lstatSync, openSync, readFileSync, statSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, isAbsolute, join } from 'node:path';

/** No usable server. `reason` and `code` are those of BedrockError. */
export class NoWay extends Error {
  constructor(message, reason = 'MISCONFIGURED', code = '') {
    super(message);
    Object.assign(this, { reason, code });
  }
}

/**
 * The local token is sent only through a Unix socket on which no other user can listen; over
 * TCP, only a given token is sent, to a given address. Throws NoWay.
 */
export function settings(address, token, { caFile, certificateFile, keyFile } = {}) {
  const { env } = process;
  const data = dataDirectory(env);
  address ||= env.BEDROCK_ADDRESS || localServer(data);
  const [, scheme, host] = /^(?:(https?):\/\/)?(.*?)\/?$/.exec(address);
  const target = host.replace(/^\[.*\]/, '').includes(':') ? host : `${host}:7421`;
  const local = /^(unix|unix-abstract|localhost|127(\.\d+){3}|\[::1\]):/.test(target);
  token ??= env.BEDROCK_TOKEN ?? (isPrivateSocket(target) ? read(join(data, 'token')) : '');
  const clear = `the token would be sent unencrypted; write https://${target}, or http:// if the connection is protected in another way`;
  if (token && !local && !scheme) throw new NoWay(clear);
  const ca = caFile || env.BEDROCK_CA_FILE;
  const certificate = certificateFile || env.BEDROCK_CERTIFICATE_FILE;
  const key = keyFile || env.BEDROCK_KEY_FILE;
  if (!certificate !== !key) throw new NoWay('a client certificate and its key must be given together');
  const [trusted, own, secret] = [ca, certificate, key].map((file) => (file ? readFileSync(file) : null));
  return { target, token, tls: scheme === 'https', ca: trusted, certificate: own, key: secret };
}

/**
 * The name of the variable with the proxy through which gRPC connects to a target. It is '' without a proxy, and for
 * targets on this machine, in a private network, and those that `no_proxy` names: these are connected to directly.
 */
export function proxyOf(target, env = process.env) {
  const host = target.replace(/^dns:(\/\/\/)?/, '').replace(/:\d+$/, '');
  const near = /^unix|^(localhost|(127|10)(\.\d+){3}|(192\.168|169\.254|172\.(1[6-9]|2\d|3[01]))(\.\d+){2}|\[(::1|f[cd].*)\])$/;
  const spared = [env.no_grpc_proxy, env.no_proxy, env.NO_PROXY].join().split(',').map((name) => name.trim().replace(/^\./, ''));
  const named = spared.some((name) => name && (name === '*' || host === name || host.endsWith(`.${name}`)));
  return (!near.test(host) && !named && ['grpc_proxy', 'https_proxy', 'http_proxy'].find((name) => env[name])) || '';
}

/** The directory of a local server's files. Throws NoWay for a relative path, which would mean a different place to the server. */
function dataDirectory(env) {
  const chosen = (env.BEDROCK_DATA_DIR ?? '').replace(/^~(?=\/|$)/, homedir());
  if (chosen && !isAbsolute(chosen)) {
    throw new NoWay(`BEDROCK_DATA_DIR: must be an absolute path, or begin with ~ (it is '${chosen}')`);
  }
  const state = isAbsolute(env.XDG_STATE_HOME ?? '') ? env.XDG_STATE_HOME : join(homedir(), '.local', 'state');
  return chosen || join(state, 'bedrock');
}

/** The target of the server that has this data directory. */
function localServer(data) {
  let target = '';
  try {
    checkPrivate(data);
    target = read(join(data, 'address'));
    if (target.startsWith('unix:/')) {
      checkSocket(target.slice('unix:'.length));
      return target;
    }
  } catch (error) {
    if (error instanceof NoWay || error.code !== 'ENOENT') throw error;
  }
  if (target && !target.startsWith('unix:/')) throw new NoWay(`${join(data, 'address')} does not name a Unix socket; restart the server`);
  throw new NoWay(
    `no Bedrock server is running on this machine (data: ${data}): start one with \`bedrock serve\``,
    'SERVER_NOT_RUNNING',
    'UNAVAILABLE',
  );
}

function isPrivateSocket(target) {
  try {
    checkSocket(target.replace(/^unix:(\/\/(?=\/))?/, ''));
  } catch {
    return false;
  }
  return target.startsWith('unix:');
}

/** No other user can listen on the socket. */
function checkSocket(path) {
  checkPrivate(dirname(path));
  const found = lstatSync(path);
  if (!found.isSocket() || found.uid !== process.geteuid()) throw new NoWay(`${path} is not a socket of this user`);
}

/** No other user can enter the directory or has created it. */
function checkPrivate(directory) {
  if (!process.geteuid) throw new NoWay('this system has no file owners to check; give the address of a server');
  const user = process.geteuid();
  const { uid, mode } = statSync(directory);
  if (uid !== user) throw new NoWay(`${directory} belongs to uid ${uid}, but this process runs as uid ${user}`);
  if (mode & 0o077) throw new NoWay(`others can access ${directory}: check its contents, then chmod 700 ${directory}`);
  const link = lstatSync(directory);
  if (link.isSymbolicLink() && ![0, user].includes(link.uid)) {
    throw new NoWay(`${directory} is a symbolic link owned by uid ${link.uid}; use its target instead`);
  }
}

/** Does not wait for a FIFO, follow a link, or trust a file that other users may have written. */
function read(path) {
  const file = openSync(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0) | (constants.O_NOFOLLOW ?? 0));
  try {
    const found = fstatSync(file);
    if (!found.isFile()) throw new NoWay(`${path} cannot be used: not a regular file`);
    if (found.uid !== process.geteuid() || found.mode & 0o022) throw new NoWay(`others can write to ${path}: check its contents`);
    return readFileSync(file, 'utf8').trim();
  } finally {
    closeSync(file);
  }
}
