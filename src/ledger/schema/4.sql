-- Schema version 4: a holder has a row for each version of its facts.

CREATE TABLE holder_4 (
    id            INTEGER PRIMARY KEY,
    name          TEXT NOT NULL,    -- workload id, or a remainder such as __unallocated__; the tenant
                                    -- __unattributed__ has a remainder per reason, __unattributed__/pod ...
    version       INTEGER NOT NULL, -- tells versions of one name apart; the order is that of id
    kind          TEXT NOT NULL,    -- unit, user, remainder, ...
    facts         TEXT NOT NULL,    -- JSON; what was not known yet is added, nothing else changes
    first_seen_ns INTEGER NOT NULL, -- when this version was first committed, account time
    tenant        TEXT NOT NULL,    -- tenant of the facts
    UNIQUE (name, version)
) STRICT;

INSERT INTO holder_4 SELECT id, name, 0, kind, facts, first_seen_ns, coalesce(tenant, name) FROM holder;

DROP TABLE holder;
ALTER TABLE holder_4 RENAME TO holder;
CREATE INDEX holder_tenant ON holder (tenant);
