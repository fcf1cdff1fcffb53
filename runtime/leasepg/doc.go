// Package leasepg is the PostgreSQL backend, for PostgreSQL 14 or newer.
//
// Its guarantees, as long as there is one writable primary with fsync on:
//
//   - A committed message is read by every consumer that matches its topic, however
//     late its transaction commits, and is read once per position of the cursor.
//   - If transaction B began after transaction A had committed, A's messages come first.
//     Otherwise messages come in the order of their ids.
//   - A commit of progress, and all that a handler did in the same transaction, takes
//     effect only while the lease has the epoch it was granted with.
//   - Epochs rise with every new owner, across releases, crashes and restarts of the
//     server. They survive failover to a standby as long as its clock is not behind the
//     last epoch by more than the failover took.
//   - A session that has been declared dead stays dead.
//
// It does not guarantee: exactly one handler running in real time while a process is paused
// (check the epoch where that matters), the same order as real time between concurrent
// transactions, and grants that survive failover to an asynchronous standby.
//
// A pooler in transaction mode works. It costs LISTEN, and with it the fast waking of an idle
// process; the quick finding of dead processes, whose TTL decides then; and lock=advisory,
// which is refused.
//
// # Roles
//
// The role that runs [Migrate] owns the schema; it needs no right on the database if the
// schema exists. Applications run with the privileges that [Grants] prints: no DDL, no
// DELETE on leases, no writing of positions in the log.
//
//	CREATE ROLE lg_owner LOGIN;
//	CREATE ROLE lg_app LOGIN;
//	CREATE SCHEMA leasegen AUTHORIZATION lg_owner;
//	-- as lg_owner: leasegen migrate, then the grants for lg_app
//
// Work that needs more rights, adding and dropping partitions of the log and forgetting ended
// sessions, goes through functions that run with the owner's rights and a fixed search_path.
//
// # Retention
//
// The log is a table of partitions of a million messages. Maintain drops a partition when
// every registered consumer has passed it; messages that no consumer wants do not hold it
// back. Parked messages and dead letters are copies.
//
// # Inside
//
// migrations has the schema and its functions, a file for each version. Most statements stand in sqlc/queries of the module, from which sqlc writes package
// internal/leasedb; those whose shape depends on the call are put together where they run. [Backend] is made of a type for
// each role, and the file has its name: ownership.go, publish.go, fetch.go, commit.go, once.go, maintain.go, operator.go.
// They share server.go (the connection pool and the server's history) and known.go (the consumers that this process has registered).
// A commit is decided on in commit.go, a transaction of a handler in tx.go; both call the schema's function for the fence.
package leasepg
