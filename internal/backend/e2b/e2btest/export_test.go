// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// Signature is the signature of a URL for a file.
var Signature = signature
