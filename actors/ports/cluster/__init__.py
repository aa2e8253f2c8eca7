"""Ports for a cluster of servers that share one store: its members, and the lease that lets this server act."""

from __future__ import annotations

from actors.ports.cluster.lease import FOREVER, OUT_OF_TOUCH, Forever, Lease
from actors.ports.cluster.membership import ONE_NODE, Cluster, Node, OneNode

__all__ = ["FOREVER", "ONE_NODE", "OUT_OF_TOUCH", "Cluster", "Forever", "Lease", "Node", "OneNode"]
