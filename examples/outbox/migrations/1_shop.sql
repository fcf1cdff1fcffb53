-- The shop as it was: orders, and an outbox that each order also writes to.
CREATE SCHEMA shop;

CREATE TABLE shop.orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer bigint NOT NULL,
    cents    bigint NOT NULL
);

CREATE TABLE shop.outbox (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event      text        NOT NULL,
    customer   bigint      NOT NULL,
    order_id   bigint,
    address    text,
    created_at timestamptz NOT NULL DEFAULT now()
);
