package leaseredis

// scripts are the atomic steps, each in a file of its own name.
var scripts = struct {
	shape *script
}{
	shape: load("shape"),
}
