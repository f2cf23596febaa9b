// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package portable writes and reads the archives of
// [sdk.PortableSnapshotter].
//
// An archive is a tar of an OCI image layout with one image: the file system
// of a sandbox, the content of volumes included. What an image has no place
// for (whose snapshot it is, its profile, what it lost) is a [Document] in an
// annotation of the image's manifest. So every tool for images can look at it,
// and a backend can make a sandbox of it as of any image.
//
//	oci-layout, index.json   the layout
//	manifest.json            the same for engines that know no layouts
//	blobs/sha256/…           manifest, configuration, layers (tar, gzip)
//
// Nothing of an archive that is read is unpacked on the host: it is spooled as
// it is, every digest is verified, and every name in its layers is looked at,
// before a backend sees any of it.
package portable

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Annotation is the annotation of the manifest that holds the [Document].
const Annotation = "dev.sandboxer.snapshot"

// Format is the version of the document that this package writes; a higher
// one is refused.
const Format = 1

// Document is what an archive says beyond its image. It holds no secret value.
type Document struct {
	Format     int       `json:"format"`
	SnapshotID string    `json:"snapshot_id"`
	SandboxID  string    `json:"sandbox_id"` // that the snapshot was made from
	Extension  string    `json:"extension"`  // that wrote the archive
	CreatedAt  time.Time `json:"created_at"` // of the snapshot
	// Profile is of the sandbox, and ProfileRevision what it was known by.
	Profile         sdk.Profile       `json:"profile"`
	ProfileRevision string            `json:"profile_revision,omitempty"`
	Owner           string            `json:"owner,omitempty"`
	Task            string            `json:"task,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"` // the user's own
	// Volumes are the directories that were volumes. Their content is in the
	// layers.
	Volumes []string   `json:"volumes,omitempty"`
	Losses  []sdk.Loss `json:"losses"`
}

// Config is what the image says about the processes in it.
type Config struct {
	Architecture string // as in GOARCH
	Env          []string
	Workdir      string
	User         string
}

// Identify returns the identity of a snapshot that is made from the archive:
// what the importer leaves open is as it was.
func (d Document) Identify(identity sdk.Identity) sdk.Identity {
	identity = identity.Clone()
	if identity.Profile == "" {
		identity.Profile, identity.ProfileRevision = d.Profile.Name, d.ProfileRevision
	}
	labels := maps.Clone(d.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, identity.Labels)
	if len(labels) > 0 {
		identity.Labels = labels
	}
	return identity
}

// Lines returns losses as one line each, for [sdk.Snapshot].
func Lines(losses []sdk.Loss) []string {
	lines := make([]string, len(losses))
	for i, loss := range losses {
		lines[i] = loss.String()
	}
	return lines
}

// The bounds of a document.
const (
	maxDocument = 3 << 20 // registries refuse manifests of more than 4 MiB
	maxLosses   = 64
	maxVolumes  = 128
	maxLabels   = 256
	maxText     = 1024
)

// encode writes a document.
func (d Document) encode() (string, error) {
	d.Format = Format
	if d.Losses == nil {
		d.Losses = []sdk.Loss{}
	}
	text, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	if len(text) > maxDocument {
		return "", &sdk.Error{Kind: sdk.ErrUnsupported, Path: "profile", Message: fmt.Sprintf("the profile takes %d bytes, and an archive has room for %d", len(text), maxDocument),
			Advice: "keep large files in the image, and not in the profile's files"}
	}
	return string(text), nil
}

// decode reads a document, which may say anything.
func decode(text string) (Document, error) {
	var version struct {
		Format int `json:"format"`
	}
	if text == "" {
		return Document{}, refused("it is an image, and no snapshot: it has no annotation %s (name it in a profile's image)", Annotation)
	}
	if len(text) > maxDocument {
		return Document{}, refused("its document has %d bytes", len(text))
	}
	if err := json.Unmarshal([]byte(text), &version); err != nil {
		return Document{}, refused("its document: %v", err)
	}
	if version.Format > Format || version.Format < 1 {
		return Document{}, refused("its document has format %d, and this program knows %d", version.Format, Format)
	}
	var d Document
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return Document{}, refused("its document: %v", err)
	}
	return d, d.check()
}

func (d *Document) check() error {
	if !sdk.IsSandboxID(d.SandboxID) {
		return refused("%q is no sandbox's id", clip(d.SandboxID))
	}
	if !sdk.IsSnapshotID(d.SnapshotID) {
		return refused("%q is no snapshot's id", clip(d.SnapshotID))
	}
	if len(d.Losses) > maxLosses || len(d.Volumes) > maxVolumes || len(d.Labels) > maxLabels {
		return refused("%d losses, %d volumes and %d labels", len(d.Losses), len(d.Volumes), len(d.Labels))
	}
	for _, volume := range d.Volumes {
		if !path.IsAbs(volume) || path.Clean(volume) != volume || volume == "/" || strings.ContainsRune(volume, 0) || len(volume) > maxText {
			return refused("%q is no path of a volume", clip(volume))
		}
	}
	for key, value := range d.Labels {
		if key == "" || len(key) > maxText || len(value) > maxText {
			return refused("the label %q", clip(key))
		}
	}
	for i, loss := range d.Losses {
		if len(loss.Kind) > 64 || len(loss.Paths) > mostPaths || loss.Count < 0 {
			return refused("a loss of the kind %q", clip(string(loss.Kind)))
		}
		d.Losses[i].Detail = oneLine(loss.Detail)
		for j, name := range loss.Paths {
			d.Losses[i].Paths[j] = oneLine(name)
		}
	}
	return nil
}

// oneLine makes a text fit to be printed.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return clip(text)
}

func clip(text string) string {
	if len(text) > maxText {
		return strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}

// mostPaths is how many files a loss names.
const mostPaths = 20

// Tally counts files of a kind, and remembers the first of them.
type Tally struct {
	Count int64
	Paths []string
}

// Add counts a file.
func (t *Tally) Add(name string) {
	t.Count++
	if len(t.Paths) < mostPaths {
		t.Paths = append(t.Paths, oneLine(name))
	}
}

// Loss returns what was counted as a loss; none when nothing was.
func (t *Tally) Loss(kind sdk.LossKind, detail string) []sdk.Loss {
	if t.Count == 0 {
		return nil
	}
	return []sdk.Loss{{Kind: kind, Detail: detail, Count: t.Count, Paths: t.Paths}}
}

// refused returns an error about an archive.
func refused(format string, args ...any) error {
	return sdk.Invalid("archive", format, args...)
}
