// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package sandbox holds the nouns and their rules: ids, profiles,
// requirements, the life of a sandbox, attribution. It does no I/O and knows
// no backend.
package sandbox
