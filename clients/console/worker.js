// @ts-check
import { Hub } from './hub.js';

const hub = new Hub();
/** @type {any} */ (globalThis).onconnect = (/** @type {MessageEvent} */ event) => hub.connect(event.ports[0]);
