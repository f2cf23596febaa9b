// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package cli is the command line: one file per verb. A verb reads its flags,
// calls the lifecycle, and prints what came back; it holds no rule of its own.
//
// Data goes to stdout, as a table or as JSON whose names are the attribute
// names of HCL; everything for people goes to stderr. errors.go is the one
// place that turns an error into words and an exit code.
package cli
