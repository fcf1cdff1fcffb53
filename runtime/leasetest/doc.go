// Package leasetest is the conformance suite.
package leasetest
