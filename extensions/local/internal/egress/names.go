// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package egress

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
)

// maxNames bounds the names that one sandbox can have resolved. A wildcard
// lets it make up as many as it likes.
const maxNames = 16 << 10

// names gives each name an address of its own, which nobody else on the
// network has. A connection to it is thus tied to the name that was resolved,
// however many names share a server, and whatever the server's address is by
// then. An address stands for its name for the sandbox's whole life and in
// its forks: whoever kept it is not led elsewhere.
type names struct {
	mu    sync.Mutex
	index map[string]int
	order []string
}

// newNames begins with names that have their addresses from a snapshot.
func newNames(saved []string) *names {
	n := &names{index: map[string]int{}}
	for _, name := range saved {
		n.address(name)
	}
	return n
}

// address returns a name's address. It fails when there are too many names.
func (n *names) address(name string) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i, known := n.index[name]
	if !known {
		if i = len(n.order); i >= maxNames {
			return netip.Addr{}, false
		}
		n.index[name] = i
		n.order = append(n.order, name)
	}
	base := firstName.As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(base[:])+uint32(i)))), true
}

// name returns the name that an address stands for.
func (n *names) name(addr netip.Addr) (string, bool) {
	if !addr.Is4() {
		return "", false
	}
	base, at := firstName.As4(), addr.As4()
	i := int64(binary.BigEndian.Uint32(at[:])) - int64(binary.BigEndian.Uint32(base[:]))
	n.mu.Lock()
	defer n.mu.Unlock()
	if i < 0 || i >= int64(len(n.order)) {
		return "", false
	}
	return n.order[i], true
}

// all returns the names in the order of their addresses.
func (n *names) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.order)
}
