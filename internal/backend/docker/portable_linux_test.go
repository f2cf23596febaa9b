// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/portable"
)

func (b backend) export(t *testing.T, s sdk.Snapshot) ([]byte, []sdk.Loss) {
	t.Helper()
	var archive bytes.Buffer
	result, err := b.ExportSnapshot(t.Context(), sdk.ExportSnapshotOptions{SnapshotID: s.ID, Fleet: b.fleet, Archive: &archive})
	if err != nil {
		t.Fatal(err)
	}
	if result.Bytes != int64(archive.Len()) || !strings.HasPrefix(result.Digest, "sha256:") {
		t.Errorf("%+v of %d bytes", result, archive.Len())
	}
	return archive.Bytes(), result.Losses
}

// said is everything that an archive says, its layers unpacked: what is packed
// can't be searched.
func said(t *testing.T, content []byte) string {
	t.Helper()
	archive, err := portable.Open(t.Context(), bytes.NewReader(content), portable.OpenOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	all := bytes.NewBuffer(bytes.Clone(content)) // documents are not packed
	for i := range archive.Layers {
		layer, err := archive.OpenLayer(i)
		if err == nil {
			_, err = io.Copy(all, layer)
		}
		if err := errors.Join(err, layer.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// take imports an archive into the backend's fleet.
func (b backend) take(t *testing.T, archive io.Reader) (sdk.ImportSnapshotResult, error) {
	t.Helper()
	id, now := "snp-"+random(20), time.Now().UTC().Truncate(time.Second)
	result, err := b.ImportSnapshot(t.Context(), sdk.ImportSnapshotOptions{
		SnapshotID: id, ExpiresAt: now.Add(time.Hour), Archive: archive,
		Identity: sdk.Identity{ID: id, Fleet: b.fleet, Owner: "importer", CreatedAt: now},
	})
	t.Cleanup(func() {
		if _, err := b.DeleteSnapshot(context.WithoutCancel(t.Context()), sdk.DeleteSnapshotOptions{SnapshotID: id, Fleet: b.fleet}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		b.nothingLeft(t, id)
	}
	return result, err
}

// A snapshot that went out and came in again is the same: files, volumes,
// defaults of the image, the profile. Nothing of its sandbox's own is in the
// archive.
func TestDockerPortableSnapshot(t *testing.T) {
	const secret, variable = "secret-canary-61", "variable-canary-62"
	b, other := open(t), open(t)
	images := b.images(t)
	t.Run("travel", func(t *testing.T) {
		_, source := b.create(t, func(opts *sdk.CreateOptions) {
			opts.Profile.Image, opts.Profile.User, opts.Profile.Workdir = dockertest.Defaults, "root", "/srv" // the image wants volumes at /data and /var/cache
			opts.Profile.Labels = map[string]string{"suite": "one"}
			opts.Secrets, opts.Env = map[string]sdk.Secret{"TOKEN": secret}, map[string]string{"OWN": variable}
			opts.Identity.Labels = opts.Profile.Labels
		})
		b.run(t, source, "sh", "-c", `cat $TOKEN_FILE > /dev/null; echo layer > /srv/file; echo volume > /data/file; mkdir -m 0750 /data/dir; chown 1000 /data/dir
			chmod 2711 /data; ln /srv/file /srv/linked; ln -s file /srv/symbolic; mkfifo /srv/pipe; touch /data/.hidden; rm /etc/group; chmod 4755 /bin/busybox
			printf '\303\244' > "/srv/$(printf '\303\244')"`)
		s := b.snapshot(t, source)
		archive, losses := b.export(t, s)
		text := said(t, archive)
		for canary, want := range map[string]bool{secret: false, variable: false, "layer\n": true, "volume\n": true} {
			if strings.Contains(text, canary) != want {
				t.Errorf("it is %v that %q is in the archive", !want, canary)
			}
		}
		kinds := []sdk.LossKind{}
		for _, loss := range losses {
			kinds = append(kinds, loss.Kind)
		}
		for _, want := range []sdk.LossKind{sdk.LossMemory, sdk.LossSecrets, sdk.LossEnvironment, sdk.LossSockets} {
			if !slices.Contains(kinds, want) {
				t.Errorf("no word about %s in %v", want, kinds)
			}
		}
		opened, err := portable.Open(t.Context(), bytes.NewReader(archive), portable.OpenOptions{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		if d := opened.Document; d.SandboxID != source.ID || d.Profile.Image != dockertest.Defaults || !slices.Equal(d.Volumes, []string{"/data", "/var/cache"}) {
			t.Errorf("the document is %+v", d)
		}

		got, err := other.take(t, bytes.NewReader(archive))
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Losses) != len(losses) || len(got.Snapshot.Lost) != len(losses) || got.Snapshot.SandboxID != source.ID || got.Snapshot.Identity.Owner != "importer" {
			t.Errorf("%+v, %d losses", got.Snapshot, len(got.Losses))
		}
		restored, fork := other.restore(t, got.Snapshot)
		if restored.Profile.Image != dockertest.Defaults || restored.Identity.Owner != "tests" {
			t.Errorf("%+v", restored)
		}
		for command, want := range map[string]string{
			"cat file /data/file; pwd; id -u": "layer\nvolume\n/srv\n0\n", "stat -c %a:%u /data/dir; stat -c %a /data": "750:1000\n2711\n",
			"echo $OWN-$FROM_IMAGE-$SANDBOXER_ID; ls /run/secrets 2>/dev/null | wc -l":  "-yes-" + fork.ID + "\n0\n",
			"stat -c %h linked; readlink symbolic; stat -c %F pipe; ls -A /data; cat ä": "2\nfile\nfifo\n.hidden\ndir\nfile\nä",
			"ls /etc/group /.dockerenv.x 2>/dev/null | wc -l; stat -c %a /bin/busybox":  "0\n4755\n",
			"grep -c ' /data ' /proc/mounts; ls /.sandboxer":                            "1\nguest\n",
		} {
			if out, code := other.run(t, fork, "sh", "-c", command); out != want || code != 0 {
				t.Errorf("%s: %q (exit code %d), want %q", command, out, code, want)
			}
		}
		// What came in can go out again, and is a snapshot like any other.
		other.run(t, fork, "sh", "-c", "echo second > /data/file; rm /data/.hidden")
		again, _ := other.export(t, other.snapshot(t, fork))
		back, err := b.take(t, bytes.NewReader(again))
		if err != nil {
			t.Fatal(err)
		}
		_, third := b.restore(t, back.Snapshot)
		if out, _ := b.run(t, third, "sh", "-c", "cat file /data/file; ls -A /data"); out != "layer\nsecond\ndir\nfile\n" {
			t.Errorf("a copy's copy: %q", out)
		}
		for of, target := range map[backend]sdk.Target{b: third, other: fork} {
			if _, err := of.Destroy(t.Context(), sdk.DestroyOptions{Target: target}); err != nil {
				t.Error(err)
			}
		}
	})
	if after := b.images(t); after != images {
		t.Errorf("%d images before, %d after", images, after)
	}
}

// An archive that can't be used leaves nothing on the engine: no image, no
// volume, no container.
func TestDockerHostileImport(t *testing.T) {
	b := open(t)
	_, source := b.create(t)
	archive, _ := b.export(t, b.snapshot(t, source))
	images := b.images(t)
	for cut := 0; cut < len(archive); cut += len(archive) / 7 {
		if _, err := b.take(t, bytes.NewReader(archive[:cut])); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("cut off at %d: %v", cut, err)
		}
	}
	damaged := bytes.Clone(archive)
	damaged[len(damaged)/2] ^= 1
	if _, err := b.take(t, bytes.NewReader(damaged)); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a changed byte: %v", err)
	}
	foreign, err := portable.NewWriter(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	var elsewhere bytes.Buffer
	if err := foreign.Layer(func(w io.Writer) error { _, err := w.Write(oneFile(t, "a")); return err }); err != nil {
		t.Fatal(err)
	}
	document := portable.Document{SnapshotID: "snp-" + random(20), SandboxID: source.ID, Profile: sdk.Profile{Name: "x"}}
	if _, _, err := foreign.Write(&elsewhere, portable.Config{Architecture: "riscv64"}, document); err != nil {
		t.Fatal(err)
	}
	if _, err := b.take(t, &elsewhere); !errors.Is(err, sdk.ErrUnsupported) {
		t.Errorf("for another processor: %v", err)
	}
	if after := b.images(t); after != images {
		t.Errorf("%d images before, %d after", images, after)
	}
	// One that the engine itself refuses, half-way.
	engineless := openFleet(t, b.fleet, func(opts *dockerOptions, config map[string]string) {
		opts.Observe = cutLoad(errors.New("the engine is gone"))
	})
	if _, err := engineless.take(t, bytes.NewReader(archive)); err == nil {
		t.Error("an import without an answer of the engine")
	}
	list, err := b.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{})
	if err != nil || len(list.Snapshots) != 1 || list.Incomplete != "" {
		t.Errorf("%d snapshots (%s), %v", len(list.Snapshots), list.Incomplete, err)
	}
	if list, err := b.engine.Client.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", sdk.LabelFleet+"="+b.fleet)}); err != nil || len(list.Items) != 1 {
		t.Errorf("%d containers, %v", len(list.Items), err)
	}
}

// cutLoad stops the requests that load an image.
func cutLoad(with error) func(*http.Request) error {
	return func(r *http.Request) error {
		if strings.HasSuffix(r.URL.Path, "/images/load") {
			return with
		}
		return nil
	}
}
