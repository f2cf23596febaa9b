// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
)

// refused runs `terraform init` on what is served, and makes sure that it
// fails for the right reason and installs nothing.
func (c *checker) refused(ctx context.Context, from, fault string, pages map[string][]byte, reasons ...string) error {
	w, err := c.workspace(from)
	if err != nil {
		return err
	}
	c.server.serve(pages)
	output, err := w.Terraform(ctx, "init", "-no-color", "-input=false")
	if err == nil {
		return fmt.Errorf("%s with %s: Terraform installed it:\n%s", from, fault, output)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !saysOneOf(output, reasons) {
		return fmt.Errorf("%s with %s: Terraform refused it, and not for that; want one of %q:\n%s", from, fault, reasons, output)
	}
	if _, err := os.Stat(c.installDir(w)); !os.IsNotExist(err) {
		return fmt.Errorf("%s with %s: Terraform refused it and left %s (%w)", from, fault, c.installDir(w), err)
	}
	say("%s with %s: refused by Terraform", from, fault)
	return nil
}

// saysOneOf looks for a text in what Terraform breaks into lines of a box.
func saysOneOf(output string, texts []string) bool {
	flat := strings.Join(strings.Fields(strings.NewReplacer("│", " ", "╷", " ", "╵", " ").Replace(output)), " ")
	for _, text := range texts {
		if strings.Contains(flat, text) {
			return true
		}
	}
	return false
}

// damaged returns the archive with one bit in its middle flipped.
func (c *checker) damaged() []byte {
	data := bytes.Clone(c.release.files[c.release.archive()])
	data[len(data)/2] ^= 1
	return data
}

// wrongSums returns the checksums with that of the archive replaced.
func (c *checker) wrongSums() []byte {
	sums := c.release.files[c.release.sums()]
	return bytes.ReplaceAll(sums, []byte(digest(c.release.files[c.release.archive()])), []byte(digest([]byte("another archive"))))
}

// refusesFromRegistry serves what must not be installed as a registry.
func (c *checker) refusesFromRegistry(ctx context.Context) error {
	stranger, err := newKey("stranger")
	if err != nil {
		return err
	}
	wrong, err := c.release.with(c.release.sums(), c.wrongSums()).signed(c.key)
	if err != nil {
		return err
	}
	foreign, err := c.release.signed(stranger)
	if err != nil {
		return err
	}
	good, err := c.server.registryPages(c.release, c.key)
	if err != nil {
		return err
	}
	damaged := map[string][]byte{}
	for path, data := range good {
		damaged[path] = data
	}
	// Everything else of the registry still speaks of the intact archive.
	damaged[assetsRoot+c.release.archive()] = c.damaged()
	if err := c.refused(ctx, fromRegistry, "a damaged archive", damaged, "archive has incorrect checksum", "incorrect checksum"); err != nil {
		return err
	}
	for _, f := range []struct {
		fault   string
		served  *assets
		reasons []string
	}{
		{"a wrong checksum, signed", wrong, []string{"checksum list has unexpected SHA-256 hash", "unexpected SHA-256 hash"}},
		{"a signature by another key", foreign, []string{"authentication signature from unknown issuer", "signature made by unknown entity"}},
		{"checksums changed after they were signed", c.release.with(c.release.sums(), append(bytes.Clone(c.release.files[c.release.sums()]), '\n')), []string{"error checking signature", "invalid signature"}},
	} {
		pages, err := c.server.registryPages(f.served, c.key)
		if err != nil {
			return err
		}
		if err := c.refused(ctx, fromRegistry, f.fault, pages, f.reasons...); err != nil {
			return err
		}
	}
	return nil
}

// refusesFromMirror serves what must not be installed as a mirror.
func (c *checker) refusesFromMirror(ctx context.Context) error {
	for _, f := range []struct {
		fault  string
		served *assets
		hashes []string
	}{
		// With an h1: hash beside it, Terraform unpacks first and zip's own
		// checksum would refuse the archive.
		{"a damaged archive", c.release.with(c.release.archive(), c.damaged()), []string{c.zh}},
		{"a wrong zh: hash", c.release, []string{spoilHash(c.zh)}},
		{"a wrong h1: hash", c.release, []string{spoilHash(c.h1)}},
	} {
		pages, err := mirrorPages(f.served, f.hashes)
		if err != nil {
			return err
		}
		if err := c.refused(ctx, fromMirror, f.fault, pages, "provider package doesn't match the expected checksum", "provider package doesn't match any of the expected checksums"); err != nil {
			return err
		}
	}
	return nil
}

// refusesBySignature makes sure that this program's own check refuses what a
// mirror would hand on without a word, and what a registry would not publish.
func (c *checker) refusesBySignature(context.Context) error {
	faults, err := c.release.faults(c.key)
	if err != nil {
		return err
	}
	for fault, a := range faults {
		if err := a.verify(c.key); err == nil {
			return fmt.Errorf("a release with %s passes the check of a release", fault)
		}
		say("release with %s: refused by this program's own check", fault)
	}
	return nil
}

// faults returns releases that differ from a good one by one fault each.
func (a *assets) faults(key *openpgp.Entity) (map[string]*assets, error) {
	stranger, err := newKey("stranger")
	if err != nil {
		return nil, err
	}
	foreign, err := a.signed(stranger)
	if err != nil {
		return nil, err
	}
	var armored bytes.Buffer
	w, err := armor.Encode(&armored, openpgp.SignatureType, nil)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(a.files[a.signature()]); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	var unlisted []byte
	for line := range bytes.Lines(a.files[a.sums()]) {
		if !bytes.Contains(line, []byte(a.manifest())) {
			unlisted = append(unlisted, line...)
		}
	}
	withoutManifest, err := a.with(a.sums(), unlisted).signed(key)
	if err != nil {
		return nil, err
	}
	old := bytes.ReplaceAll(a.files[a.manifest()], []byte(`"`+protocol+`"`), []byte(`"5.0"`))
	listed := bytes.ReplaceAll(a.files[a.sums()], []byte(digest(a.files[a.manifest()])), []byte(digest(old)))
	oldProtocol, err := a.with(a.manifest(), old).with(a.sums(), listed).signed(key)
	if err != nil {
		return nil, err
	}
	return map[string]*assets{
		"a signature by another key":            foreign,
		"an armored signature":                  a.with(a.signature(), armored.Bytes()),
		"no signature":                          a.with(a.signature(), nil),
		"a manifest that is not listed":         withoutManifest,
		"a manifest of another protocol":        oldProtocol,
		"an archive that is not the one signed": a.with(a.archive(), []byte("another archive")),
	}, nil
}
