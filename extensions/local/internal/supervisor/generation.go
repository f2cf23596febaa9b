// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"crypto/rand"
	"fmt"
	"os"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
)

// writeGeneration makes this sandbox's identifier, as a random UUID, which is
// also its kernel's boot id. A copy that begins in the middle of a process
// tells by it that it is a copy; and two copies of one snapshot, which share
// all that is in memory, tell themselves apart.
func writeGeneration() error {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	id := fmt.Sprintf("%x-%x-%x-%x-%x\n", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	return os.WriteFile(rootfs.PrivateOwn+"/"+rootfs.Generation, []byte(id), 0o444)
}
