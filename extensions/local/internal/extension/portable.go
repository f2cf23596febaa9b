// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// Snapshots that go to other backends, and come from them. An archive has the
// image in one layer and what was written in another; what comes in becomes
// an image of the cache, which the snapshot keeps there.

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/guest"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/image"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/snapshot"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/portable"
)

// ExportSnapshot implements [sdk.PortableSnapshotter].
func (e *Extension) ExportSnapshot(ctx context.Context, opts sdk.ExportSnapshotOptions) (result sdk.ExportSnapshotResult, err error) {
	m, dir, err := e.readSnapshot(opts.SnapshotID, opts.Fleet)
	if err != nil {
		return result, err
	}
	if m.Kind != sdk.SnapshotFilesystem {
		return result, &sdk.Error{Kind: sdk.ErrUnsupported, Path: "snapshot", Message: fmt.Sprintf("snapshot %s is of memory, which only this gVisor on such a processor can go on with", m.ID),
			Advice: "make a filesystem snapshot"}
	}
	if m.Image == "" {
		return result, &sdk.Error{Kind: sdk.ErrUnsupported, Path: "snapshot", Message: fmt.Sprintf("snapshot %s lies on this machine's own root, which is not in it", m.ID),
			Advice: "make the sandbox from an image"}
	}
	if err := m.CheckFiles(dir); err != nil {
		return result, fmt.Errorf("snapshot %s is damaged: %w", m.ID, err)
	}
	source, err := e.snapshotSource(ctx, sdk.CreateOptions{Profile: m.Profile}, &origin{manifest: m, dir: dir})
	if err != nil {
		return result, err
	}
	defer source.image.Close()
	spool, end, err := e.spool()
	if err != nil {
		return result, err
	}
	defer end()
	w, err := portable.NewWriter(spool)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "export", Message: "files of " + m.ID})
	}
	losses, err := exportLayers(ctx, m, dir, source.image, w)
	if err != nil {
		return result, err
	}
	result.Losses = losses
	result.Bytes, result.Digest, err = w.Write(opts.Archive, portable.Config{
		Architecture: m.Host.Arch, Env: source.meta.Config.Env, Workdir: source.meta.Config.Workdir, User: source.meta.Config.User,
	}, portable.Document{
		SnapshotID: m.ID, SandboxID: m.SandboxID, Extension: Name, CreatedAt: m.CreatedAt,
		Profile: m.Profile, ProfileRevision: m.Identity.ProfileRevision, Owner: m.Identity.Owner, Task: m.Identity.Task, Labels: m.Identity.Labels,
		Volumes: m.Volumes, Losses: losses,
	})
	return result, err
}

// spool makes a directory for an archive, which goes with its writer even if
// that is killed.
func (e *Extension) spool() (dir string, end func(), err error) {
	if err := e.store.open(); err != nil {
		return "", nil, err
	}
	dir, lock, err := e.store.begin("snapshots", record.WriterLock)
	if err != nil {
		return "", nil, err
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		lock.Close()
	}, nil
}

// exportLayers writes the layers of a snapshot, and tells what is not in them.
func exportLayers(ctx context.Context, m snapshot.Manifest, dir string, base *image.Image, w *portable.Writer) ([]sdk.Loss, error) {
	if err := w.Layer(base.Export); err != nil {
		return nil, fmt.Errorf("image of snapshot %s: %w", m.ID, err)
	}
	var upper upperLayer
	if m.Has(supervisor.UpperName) {
		f, err := os.Open(filepath.Join(dir, supervisor.UpperName))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if upper.attributes, err = readAttributes(m, dir); err != nil {
			return nil, err
		}
		if err := w.Layer(func(to io.Writer) error { return upper.copy(ctx, to, f) }); err != nil {
			return nil, fmt.Errorf("files of snapshot %s: %w", m.ID, err)
		}
	}
	var times []sdk.Loss
	for _, line := range m.Lost {
		times = append(times, sdk.Loss{Kind: sdk.LossTimes, Detail: line})
	}
	return slices.Concat([]sdk.Loss{
		{Kind: sdk.LossMemory, Detail: "processes and their memory: the command starts anew"},
		{Kind: sdk.LossSecrets, Detail: "secret files lie on a tmpfs, which is in no snapshot"},
		{Kind: sdk.LossEnvironment, Detail: "variables of the create; those of image and profile are carried"},
		{Kind: sdk.LossSockets, Detail: "unix sockets: the runtime's archive leaves them out"},
	}, upper.devices.Loss(sdk.LossDevices, "device files"),
		upper.lost.Loss(sdk.LossAttributes, "files with extended attributes that other backends can't take: only user.* and file capabilities are carried"), times), nil
}

// readAttributes reads what the archive of a writable layer leaves out.
func readAttributes(m snapshot.Manifest, dir string) (map[string]guest.Attributes, error) {
	if !m.Has(supervisor.AttributesName) {
		return nil, nil
	}
	f, err := os.Open(filepath.Join(dir, supervisor.AttributesName))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[string]guest.Attributes{}
	for in := json.NewDecoder(f); ; {
		var a guest.Attributes
		if err := in.Decode(&a); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", supervisor.AttributesName, err)
		}
		all[cleanName(string(a.Path))] = a
	}
}

func cleanName(name string) string { return strings.TrimPrefix(path.Join("/", name), "/") }

// upperLayer turns the archive of a writable layer into a layer of an image:
// what overlayfs says with devices and attributes, an image says with names.
type upperLayer struct {
	attributes    map[string]guest.Attributes
	devices, lost portable.Tally
	gone          map[string]bool // names of deletions and devices, which may be linked together
}

const (
	xattrPrefix  = "SCHILY.xattr."
	opaqueSuffix = ".overlay.opaque"
	hidden       = ".wh."
	opaqueName   = ".wh..wh..opq"
)

func (u *upperLayer) copy(ctx context.Context, to io.Writer, from io.Reader) error {
	u.gone = map[string]bool{}
	in, out := tar.NewReader(from), tar.NewWriter(to)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if err := u.entry(out, header, in); err != nil {
			return err
		}
	}
}

func (u *upperLayer) entry(out *tar.Writer, header *tar.Header, content io.Reader) error {
	name := cleanName(header.Name)
	if name == "" {
		return nil
	}
	link := cleanName(header.Linkname)
	deleted := header.Typeflag == tar.TypeChar && header.Devmajor == 0 && header.Devminor == 0
	switch {
	case deleted, header.Typeflag == tar.TypeLink && u.gone[link]:
		u.gone[name] = true
		return out.WriteHeader(&tar.Header{Name: path.Join(path.Dir(name), hidden+path.Base(name)), Typeflag: tar.TypeReg, Mode: 0o600})
	case header.Typeflag == tar.TypeChar, header.Typeflag == tar.TypeBlock:
		u.devices.Add("/" + name)
		return nil
	case strings.HasPrefix(path.Base(name), hidden):
		return &sdk.Error{Kind: sdk.ErrUnsupported, Message: fmt.Sprintf("/%s has a name that means a deletion in an image", clip(name)), Advice: "rename it, and make the snapshot again"}
	}
	opaque := u.adopt(header, name)
	header.Name, header.Format = name, tar.FormatPAX
	switch header.Typeflag {
	case tar.TypeDir:
		header.Name += "/"
	case tar.TypeLink:
		header.Linkname = link
	}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	if opaque {
		return out.WriteHeader(&tar.Header{Name: path.Join(name, opaqueName), Typeflag: tar.TypeReg, Mode: 0o600})
	}
	_, err := io.Copy(out, content)
	return err
}

// adopt gives an entry the times and attributes that it had, as far as other
// backends can take them, and tells whether it hides what is below it.
func (u *upperLayer) adopt(header *tar.Header, name string) (opaque bool) {
	records := map[string]string{}
	lost := false
	keep := func(attribute, value string) {
		switch {
		case strings.HasSuffix(attribute, opaqueSuffix):
			opaque = opaque || value == "y"
		case strings.Contains(attribute, ".overlay."):
		case value == "" || strings.Contains(attribute, "="):
			lost = true // a tar has no place for it
		case strings.HasPrefix(attribute, "user."), attribute == "security.capability":
			records[xattrPrefix+attribute] = value
		default:
			lost = true
		}
	}
	for key, value := range header.PAXRecords {
		if attribute, ok := strings.CutPrefix(key, xattrPrefix); ok {
			keep(attribute, value)
		}
	}
	a := u.attributes[name]
	for attribute, value := range a.Extended {
		keep(attribute, string(value))
	}
	if !a.Modified.IsZero() {
		header.ModTime = a.Modified
	}
	if lost {
		u.lost.Add("/" + name)
	}
	header.PAXRecords, header.Xattrs = records, nil //nolint:staticcheck // the reader sets both, and the writer merges them
	return opaque
}

// ImportSnapshot implements [sdk.PortableSnapshotter].
func (e *Extension) ImportSnapshot(ctx context.Context, opts sdk.ImportSnapshotOptions) (result sdk.ImportSnapshotResult, err error) {
	if !sdk.IsSnapshotID(opts.SnapshotID) {
		return result, sdk.Invalid("snapshot_id", "%q is not a snapshot id", clip(opts.SnapshotID))
	}
	if opts.ExpiresAt.IsZero() {
		return result, sdk.Invalid("ttl", "there is no snapshot without a retention")
	}
	fleet, err := e.fleetOf(opts.Identity.Fleet)
	if err != nil {
		return result, err
	}
	spool, end, err := e.spool()
	if err != nil {
		return result, err
	}
	defer end()
	most, err := e.roomForArchive(ctx)
	if err != nil {
		return result, err
	}
	archive, err := portable.Open(ctx, opts.Archive, portable.OpenOptions{Dir: spool, MaxSize: most})
	if err != nil {
		return result, err
	}
	if err := archive.Fits(runtime.GOARCH); err != nil {
		return result, err
	}
	// The id is taken before the work is done.
	partial, lock, err := e.beginSnapshot(opts.SnapshotID)
	if err != nil {
		return result, err
	}
	defer lock.Close()
	defer os.RemoveAll(partial)
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "import", Message: "unpacking " + opts.SnapshotID, Total: archive.Unpacked})
	}
	unpacked, err := e.assemble(ctx, archive, opts.SnapshotID)
	if err != nil {
		return result, err
	}
	defer unpacked.Close() // until the manifest says that it is needed
	info, err := os.Stat(unpacked.Path)
	if err != nil {
		return result, err
	}
	result.Losses = slices.Concat(archive.Document.Losses,
		archive.Attributes.Loss(sdk.LossAttributes, "files with extended attributes: an unpacked image of this backend has none"))
	identity := archive.Document.Identify(opts.Identity)
	identity.ID, identity.Fleet, identity.Incarnation = opts.SnapshotID, fleet, max(identity.Incarnation, 1)
	m := snapshot.Manifest{
		Format: snapshot.Format, ID: opts.SnapshotID, Kind: sdk.SnapshotFilesystem, SandboxID: archive.Document.SandboxID, Identity: identity,
		Profile: archive.Document.Profile, CreatedAt: e.now().UTC().Round(0), ExpiresAt: opts.ExpiresAt.UTC().Round(0), Event: opts.Event,
		Lost: portable.Lines(result.Losses), Image: unpacked.Key, Volumes: archive.Document.Volumes, Host: snapshot.ThisHost(),
		Imported: &snapshot.Imported{Digest: archive.Digest, Size: info.Size()},
	}
	if err := snapshot.Write(partial, m); err != nil {
		return sdk.ImportSnapshotResult{}, err
	}
	if err := e.nameSnapshot(ctx, partial, opts.SnapshotID); err != nil {
		return sdk.ImportSnapshotResult{}, err
	}
	result.Snapshot = e.snapshotOf(m)
	return result, nil
}

// roomForArchive is how large an archive may be, spooled or unpacked.
func (e *Extension) roomForArchive(ctx context.Context) (int64, error) {
	if e.maxState == 0 {
		return portable.DefaultMaxSize, nil
	}
	t, err := e.taken(ctx)
	if err != nil {
		return 0, err
	}
	left := e.maxState - (t.total() - t.images)
	if left <= 0 {
		return 0, &sdk.Error{Kind: sdk.ErrQuota, Path: quotaKey, Message: fmt.Sprintf("of the %s that %s allows nothing is left for an archive", mebi(e.maxState), quotaKey),
			Advice: "destroy sandboxes, delete snapshots, or raise " + quotaKey}
	}
	return left, nil
}

// assemble makes an image of the cache of an archive.
func (e *Extension) assemble(ctx context.Context, archive *portable.Archive, id string) (*image.Image, error) {
	layers := image.Layers{
		Config: image.Config{Env: archive.Config.Env, Workdir: archive.Config.Workdir, User: archive.Config.User},
		Open:   archive.OpenLayer,
	}
	for _, layer := range archive.Layers {
		layers.Digests = append(layers.Digests, layer.Digest)
	}
	unpacked, err := e.withRoom(ctx, "of snapshot "+id, func(images image.Cache) (*image.Image, error) { return images.Assemble(ctx, layers) })
	if errors.Is(err, image.ErrRefused) {
		return nil, &sdk.Error{Kind: sdk.ErrInvalid, Path: "archive", Message: "it can't be unpacked", Err: err}
	}
	return unpacked, err
}
