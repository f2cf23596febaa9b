// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// Images that the engine builds from a context. What is built is tagged with
// what it was built from, so that the same context is built once.

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	buildtypes "github.com/moby/moby/api/types/build"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// labelBuild is the fleet that an image was built for. A container has the
	// labels of its image too, and so has what is committed from it: with the
	// label alone nothing is removed.
	labelBuild = sdk.LabelPrefix + "build"
	// buildAge is how old an image of the fleet must be to be removed when
	// another is built and nothing uses it.
	buildAge = 24 * time.Hour
	// buildTail is how many lines of a build's output an error shows.
	buildTail = 20
)

// buildRepository is where the images that are built for a fleet are tagged.
func buildRepository(fleet string) string {
	sum := sha256.Sum256([]byte(fleet))
	return "sandboxer.local/build-" + hex.EncodeToString(sum[:6])
}

// imageBuild returns the image of a build context.
func (e *Extension) imageBuild(ctx context.Context, eng engine, b sdk.BuildSource, progress func(sdk.Progress)) (image, error) {
	if progress == nil {
		progress = func(sdk.Progress) {}
	}
	src, err := packContext(ctx, b)
	if err != nil {
		return image{}, err
	}
	defer src.Close()
	tag := buildRepository(e.fleet) + ":" + src.key
	img, err := e.inspectImage(ctx, eng, tag)
	if !errdefs.IsNotFound(err) {
		return img, e.buildError(err, b)
	}
	if err := e.pullBases(ctx, eng, src.bases, progress); err != nil {
		return image{}, err
	}
	if err := e.runBuild(ctx, eng, src, b, tag, progress); err != nil {
		return image{}, err
	}
	if img, err = e.inspectImage(ctx, eng, tag); err == nil {
		e.dropBuilds(ctx, eng, tag)
	}
	return img, e.buildError(err, b)
}

func (e *Extension) buildError(err error, b sdk.BuildSource) error {
	return atBuild(e.imageError(err, "image of "+clip(b.Context)))
}

// atBuild puts an error about an image where the profile names none.
func atBuild(err error) error {
	var said *sdk.Error
	if errors.As(err, &said) && said.Path == "image" {
		said.Path = "build"
	}
	return err
}

// pullBases gets the images that a Dockerfile begins with: the engine would
// pull them without credentials. Those whose name depends on an argument are
// left to it.
func (e *Extension) pullBases(ctx context.Context, eng engine, bases []string, progress func(sdk.Progress)) error {
	for _, base := range bases {
		if _, err := e.image(ctx, eng, base, progress); err != nil {
			return atBuild(err)
		}
	}
	return nil
}

// runBuild has the engine build. It is the builder that every engine has: the
// newer one wants a session, in which the client serves files.
func (e *Extension) runBuild(ctx context.Context, eng engine, src *buildContext, b sdk.BuildSource, tag string, progress func(sdk.Progress)) error {
	args := make(map[string]*string, len(b.Args))
	for name, value := range b.Args {
		args[name] = &value
	}
	answer, err := eng.ImageBuild(ctx, bufio.NewReaderSize(src.spool, 1<<20), client.ImageBuildOptions{
		Version: buildtypes.BuilderV1, Tags: []string{tag}, Dockerfile: src.dockerfile, Target: b.Target, BuildArgs: args,
		Labels: map[string]string{labelBuild: e.fleet}, Remove: true, ForceRemove: true,
	})
	if err != nil {
		return e.buildError(err, b)
	}
	defer answer.Body.Close()
	var output tail
	decoder := json.NewDecoder(io.LimitReader(answer.Body, maxBuildOutput))
	for {
		var line struct {
			Stream string `json:"stream"`
			Error  string `json:"error"`
		}
		err := decoder.Decode(&line)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return &sdk.Error{Kind: sdk.ErrUnreachable, Path: "build", Message: fmt.Sprintf("the account of the build of %s by the engine at %s broke off", clip(b.Context), e.host), Err: err}
		case line.Error != "":
			return &sdk.Error{
				Kind: sdk.ErrInvalid, Path: "build", Message: fmt.Sprintf("%s can't be built: %s\n%s", clip(b.Context), oneLine(line.Error), output.String()),
				Advice: "mend the Dockerfile; `docker build` shows the same",
			}
		}
		for text := range strings.Lines(line.Stream) {
			if text = oneLine(text); text != "" {
				output.add(text)
				progress(sdk.Progress{Phase: "build", Message: text})
			}
		}
	}
}

// maxBuildOutput bounds what is read of a build's output.
const maxBuildOutput = 256 << 20

// tail is the last lines of an output.
type tail []string

func (t *tail) add(line string) {
	*t = append(*t, line)
	if len(*t) > buildTail {
		*t = (*t)[1:]
	}
}

func (t *tail) String() string { return strings.Join(*t, "\n") }

// oneLine makes a line of someone else's tame.
func oneLine(text string) string {
	text = strings.TrimSpace(strings.ToValidUTF8(text, "�"))
	return clip(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text))
}

// dropBuilds removes the fleet's older builds that nothing uses. It is best
// effort: the next build tries again.
func (e *Extension) dropBuilds(ctx context.Context, eng engine, keep string) {
	repository := buildRepository(e.fleet)
	filters := labelled(labelBuild, e.fleet).Add("reference", repository)
	found, err := eng.ImageList(ctx, client.ImageListOptions{Filters: filters})
	if err != nil {
		return
	}
	_, f, err := e.ask(ctx)
	if err != nil {
		return
	}
	before := e.now(f).Add(-buildAge)
	for _, img := range found.Items {
		ours := !slices.ContainsFunc(img.RepoTags, func(tag string) bool { return !strings.HasPrefix(tag, repository+":") })
		if ours && len(img.RepoTags) > 0 && !slices.Contains(img.RepoTags, keep) && time.Unix(img.Created, 0).Before(before) {
			// Without force: one that a container or a snapshot needs stays.
			_, _ = eng.ImageRemove(ctx, img.ID, client.ImageRemoveOptions{PruneChildren: true})
		}
	}
}
