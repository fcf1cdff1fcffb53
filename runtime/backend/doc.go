// Package backend is the contract between the runtime and a store of leases and messages. It is for authors of
// backends; applications use package lease alone.
//
// A [Backend] has five roles: [Publisher] takes messages in, [Ownership] says which session has which resource, [Log] hands
// messages out, [Commits] stores what became of them, and [Housekeeping] keeps the store usable. Its [Capabilities] name the
// roles that it has beyond these.
//
// # Rules for every call
//
//   - The runtime is the only caller. Every method may be called from many goroutines at once, but those of a [Feed] and
//     of a [Tx], which one goroutine calls at a time.
//   - Time is the store's own: a backend compares its server's clock with itself, never with the caller's. Durations
//     go to the store, times do not.
//   - A call returns when its context ends. Its request may then have been carried out, or be carried out later.
//   - [ErrSessionLost], [ErrFenced] and [ErrRolledBack] are definite: the call had no effect. After any other error it
//     may have taken effect, wholly or not at all within the scope that each method names, and the runtime repeats it.
//     A method says what a repetition does where it is not the same as one call.
//   - A request for leases that the session does not hold any more, or for a consumer that is not registered, is no
//     error: it has no effect and says so in its answer.
//   - Bounds are in rows and in bytes: an answer holds as much as was asked for, and no call reads all there is.
//
// # Ownership
//
// A resource of a consumer has an owner or is free. Its epoch rises with each new owner and never falls, also when a
// resource is forgotten and comes again. A session is live until it is closed, or until it has expired and a call notices
// that; it is dead from then on, and no call brings it back. A session can change its own leases alone, and each only under
// its present epoch. The leases of a dead session stay under its name until another session takes them, or housekeeping
// sets them free; writes of the dead session to them may be accepted until then, since they harm no other owner.
//
// # Writing a backend
//
// A store that keeps each session and each lease whole (memory, a file, documents) leaves their rules to package rows, as
// leasemem does, and examples/filebackend, a backend on one file in 570 lines. Servers that have a language of their own,
// as leasepg and leaseredis, write them there, and share the small functions of this package.
//
// # Checking a backend
//
// Package leasetest runs the whole of this contract against a backend, with the runtime on top, and its simulation
// searches for orders of events that break it. Package leasemem has all roles in memory: it is the shortest answer to what a
// method has to do.
package backend
