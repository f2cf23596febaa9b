// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import "github.com/sand-boxer/terraform-provider-sandboxer/sdk"

// abilitySet is a set of optional abilities.
type abilitySet uint

// The optional abilities, as bits.
const (
	abilityExec abilitySet = 1 << iota
	abilityCopy
	abilityLogs
	abilityPause
	abilityPrepare
	abilitySnapshot
	abilityPortable
	abilityInspect
)

// ability is one optional interface of package sdk.
type ability struct {
	bit abilitySet
	is  func(iface any) bool         // whether a nil pointer is to it
	has func(ext sdk.Extension) bool // whether an extension has it
}

func abilityOf[T any](bit abilitySet) ability {
	return ability{
		bit: bit,
		is:  func(iface any) bool { _, ok := iface.(*T); return ok },
		has: func(ext sdk.Extension) bool { _, ok := sdk.As[T](ext); return ok },
	}
}

// abilities are the optional interfaces by their names on the wire.
var abilities = map[string]ability{
	"exec":     abilityOf[sdk.Execer](abilityExec),
	"copy":     abilityOf[sdk.Copier](abilityCopy),
	"logs":     abilityOf[sdk.Logger](abilityLogs),
	"pause":    abilityOf[sdk.Pauser](abilityPause),
	"prepare":  abilityOf[sdk.Preparer](abilityPrepare),
	"snapshot": abilityOf[sdk.Snapshotter](abilitySnapshot),
	"portable": abilityOf[sdk.PortableSnapshotter](abilityPortable),
	"inspect":  abilityOf[sdk.Inspector](abilityInspect),
}

// abilitiesOf returns what an extension can do.
func abilitiesOf(ext sdk.Extension) (set abilitySet) {
	for _, a := range abilities {
		if a.has(ext) {
			set |= a.bit
		}
	}
	return set
}

// Has implements [sdk.Chooser]: the client has every method, and the
// extension what it announced.
func (c *client) Has(iface any) bool {
	for _, a := range abilities {
		if a.is(iface) {
			return c.abilities&a.bit != 0
		}
	}
	return false
}

// unannounced refuses a call of an ability that the extension lacks.
func unannounced(ability string) error {
	return sdk.Unsupported("", "the extension does not have the ability %q", ability)
}
