// Package templates holds what leasegen emits and is not Go: the queries for a consumer's
// own table, and the configuration with which sqlc checks them.
package templates

import "embed"

// Files are text/template sources.
//
//go:embed *.tmpl
var Files embed.FS
