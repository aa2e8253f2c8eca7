-- What model requests of each principal spent, day by day, for quotas of tokens and costs.

CREATE TABLE spendings (
    principal TEXT NOT NULL,
    day INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    cost_micros INTEGER NOT NULL,
    PRIMARY KEY (day, principal)
);
