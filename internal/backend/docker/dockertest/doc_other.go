// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

// Package dockertest gives tests a Docker Engine of their own, on Linux.
package dockertest
