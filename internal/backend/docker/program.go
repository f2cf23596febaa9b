// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// The programs of ours that run in containers: found beside this program, as
// extensions are, since they are for the engine's platform and not for this
// one. Linked in, both kinds for both architectures would make the provider
// half as large again, for everybody and at every start.

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The names of the programs, to which the architecture is added.
const (
	guestProgram  = "sandboxer-docker-guest-linux-"
	reaperProgram = "sandboxer-docker-reaper-linux-"
)

// maxProgram bounds a program's size.
const maxProgram = 64 << 20

// program is the content of one of our programs.
type program struct {
	content []byte
	digest  string // the beginning of its SHA-256, in hexadecimal
}

// programs are read once: they are the same for the life of a process.
var programs struct {
	mu   sync.Mutex
	read map[string]program
}

func (e *Extension) guest(arch string) (program, error) { return e.program(guestProgram + arch) }

func (e *Extension) program(name string) (program, error) {
	missing := func(err error) error {
		return &sdk.Error{
			Kind: sdk.ErrUnreachable, Message: name + ", which runs in containers, is not beside this program", Err: err,
			Advice: "it is in the release archives; `make build` makes it in a checkout",
		}
	}
	if e.opts.Program == nil {
		return program{}, missing(nil)
	}
	path, err := e.opts.Program(name)
	if err != nil {
		return program{}, missing(err)
	}
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if found, ok := programs.read[path]; ok {
		return found, nil
	}
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxProgram {
		err = fmt.Errorf("%d bytes", info.Size())
	}
	if err != nil {
		return program{}, missing(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return program{}, missing(err)
	}
	sum := sha256.Sum256(content)
	found := program{content: content, digest: hex.EncodeToString(sum[:8])}
	if programs.read == nil {
		programs.read = map[string]program{}
	}
	programs.read[path] = found
	return found, nil
}
