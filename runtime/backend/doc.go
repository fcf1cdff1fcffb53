// Package backend is the contract between the runtime and a store of leases and messages. It is for authors of
// backends; applications use package lease alone.
//
// A [Backend] has four roles: [Ownership] of resources by sessions, the [Log] of messages, [Commits] of what became of
// them, and [Housekeeping]. What a backend can do beyond that it says in its [Capabilities].
//
// # Rules for every call
//
//   - The runtime is the only caller. Every method may be called from many goroutines at once, but those of a [Feed] and
//     of a [Tx], which one goroutine calls at a time.
//   - Time is the store's own: a backend compares its server's clock with itself, never with the caller's. Durations
//     go to the store, times do not.
//   - A call returns when its context ends. What it sent may then have been carried out, or be carried out later.
//   - [ErrSessionLost], [ErrFenced] and [ErrRolledBack] are definite: the call changed nothing. After any other error it
//     may have taken effect, wholly or not at all within the scope that each method names, and the runtime repeats it.
//     A method says what a repetition does where it is not the same as one call.
//   - A request for leases that the session does not hold any more, or for a consumer that is not registered, is no
//     error: it changes nothing and says so in its answer.
//   - Bounds are in rows and in bytes: an answer holds as much as was asked for, and no call reads all there is.
//
// # Ownership
//
// A resource of a consumer has an owner or is free. Its epoch rises with each new owner and never falls, also when a
// resource is forgotten and comes again. A session is live until it is closed or has expired, and dead from then on:
// no call brings it back. Only the leases of a live session can change through it, and only under their present epoch.
//
// # Checking a backend
//
// Package leasetest runs the whole of this contract against a backend, with the runtime on top, and its simulation
// searches for orders of events that break it. examples/filebackend, a backend on one file, was written from this
// documentation.
package backend
