// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package profile reads profile documents in YAML, JSON and HCL, publishes
// their JSON Schema, and finds profiles by name.
//
// Every syntax is first read into the same tree of values with their places
// (tree.go and one file per syntax), which is then held against one table of
// what a document may hold (table.go, check.go). The JSON Schema comes from
// the same table (schema.go).
package profile
