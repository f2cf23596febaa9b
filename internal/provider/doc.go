// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package provider is the Terraform face: plugin framework, protocol 6. It
// is thin: schemas, plan rules, and the translation between Terraform's
// values and the verbs of package lifecycle. There is one file per object;
// what several objects share is in files without a kind in their name.
package provider
