// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// The labels and names of what we keep on an engine.

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The labels beyond those of an identity.
const (
	// labelRole says what an object is for.
	labelRole = sdk.LabelPrefix + "role"
	// labelLease is a lease as JSON: on a lease volume the record itself, on
	// a container the one that it was made with.
	labelLease = sdk.LabelPrefix + "lease"
	// labelNonce tells whoever creates a volume whether it is theirs: creating
	// one that exists returns the first writer's labels.
	labelNonce    = sdk.LabelPrefix + "nonce"
	labelDocument = sdk.LabelPrefix + "profile-document"
	labelOnExpiry = sdk.LabelPrefix + "on-expiry"
	labelPorts    = sdk.LabelPrefix + "ports"
	labelSecrets  = sdk.LabelPrefix + "secrets"
	// labelSandbox and labelVolumes are a snapshot's: what it was made from,
	// and the paths of the volumes in it.
	labelSandbox = sdk.LabelPrefix + "sandbox"
	labelVolumes = sdk.LabelPrefix + "volumes"
	// labelLost is what an imported snapshot does not hold, a line each.
	labelLost = sdk.LabelPrefix + "lost"
	// labelSnapshot is the snapshot that a sandbox was restored from.
	labelSnapshot = sdk.LabelPrefix + "snapshot"
)

// The roles.
const (
	roleSandbox = "sandbox" // the container
	roleLease   = "lease"   // a volume that is a record, never mounted
	roleMade    = "made"    // a volume that says that the container was there, never mounted
	roleData    = "data"    // a volume that the image asks for
	roleNetwork = "network" // the sandbox's own, without a way out
	rolePorts   = "ports"   // the container that carries connections in
	roleReaper  = "reaper"  // the container that ends what has expired

	roleSnapshot  = "snapshot"  // an image
	roleRetention = "retention" // a volume that is a record of a snapshot's, never mounted
	roleHelper    = "helper"    // a container that takes volumes' content, and never runs
)

func leaseName(id, generation string) string { return id + ".lease." + generation }
func madeName(id string) string              { return id + ".made" }
func portsName(id string) string             { return id + "-ports" }
func networkName(id string) string           { return id + "-net" }

// labelled selects by labels; a value of nil is any.
func labelled(pairs ...string) client.Filters {
	filters := client.Filters{}
	for i := 0; i < len(pairs); i += 2 {
		filters.Add("label", pairs[i]+"="+pairs[i+1])
	}
	return filters
}

// ownLabels are all labels that an image may bring along from a snapshot:
// what a sandbox does not say itself it must not inherit.
var ownLabels = []string{
	sdk.LabelOwner, sdk.LabelTask, sdk.LabelRun, sdk.LabelActor, sdk.LabelProfile, sdk.LabelProfileRevision, sdk.LabelUser,
	labelDocument, labelPorts, labelSandbox, labelVolumes, labelSnapshot, labelLost, labelBuild,
}

// encode writes a value of our own types, which always encodes.
func encode(value any) string {
	encoded, _ := json.Marshal(value)
	return string(encoded)
}

// The bounds of a document in a label: what is longer is packed, and what is
// longer than that is not kept. An engine reads all labels at its start.
const (
	longDocument = 4 << 10
	mostDocument = 64 << 10
	packedPrefix = "gzip:"
)

// encodeDocument writes a profile into a label; empty when it is too long.
func encodeDocument(p sdk.Profile) string {
	text := encode(p)
	if len(text) <= longDocument {
		return text
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = io.WriteString(w, text) // to memory
	_ = w.Close()
	text = packedPrefix + base64.StdEncoding.EncodeToString(packed.Bytes())
	if len(text) > mostDocument {
		return ""
	}
	return text
}

// decodeDocument reads a profile; the zero one when it was not kept.
func decodeDocument(text string) (p sdk.Profile, err error) {
	if packed, ok := strings.CutPrefix(text, packedPrefix); ok {
		raw, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(packed)))
		if err != nil {
			return p, err
		}
		// Documents are bounded where they are made; this is the failsafe.
		const mostUnpacked = 64 << 20
		err = json.NewDecoder(io.LimitReader(raw, mostUnpacked)).Decode(&p)
		return p, err
	}
	if text == "" {
		return p, nil
	}
	return p, json.Unmarshal([]byte(text), &p)
}
