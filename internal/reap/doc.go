// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package reap ends what is past its deadline. A sweep computes one
// selection, which can be shown; running it can only shrink it, since each
// item is checked again by the claim on its lease. One broken object never
// stops the rest.
package reap
