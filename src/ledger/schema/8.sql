-- Schema version 8: the identity of a ledger in exports, and what its node was before.

-- Random, and another one where the file is found on another machine.
ALTER TABLE ledger ADD COLUMN uid TEXT NOT NULL DEFAULT '';
ALTER TABLE ledger ADD COLUMN machine_id TEXT NOT NULL DEFAULT ''; -- /etc/machine-id; empty: unknown
-- Time before it is of the ledger from which this one was copied, and is not exported.
ALTER TABLE ledger ADD COLUMN exports_since_ns INTEGER NOT NULL DEFAULT 0;

-- What the node was before it was what `node` says.
CREATE TABLE past_node (
    until_ns      INTEGER PRIMARY KEY, -- when it was last so
    name          TEXT NOT NULL,
    cluster       TEXT,
    pool          TEXT,
    instance_type TEXT,
    spot          INTEGER
) STRICT;
