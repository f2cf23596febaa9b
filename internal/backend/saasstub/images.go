// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// The vendor's snapshots.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

func (st *state) image(id string) (*image, error) {
	if i, ok := st.Images[id]; ok {
		return i, nil
	}
	return nil, &APIError{Status: 404, Code: CodeNotFound, Message: fmt.Sprintf("no image %.40q", id)}
}

// capture keeps a box's files as an image.
func (s *Server) capture(b *box, now time.Time, shown Image) *image {
	kept := &image{Env: maps.Clone(b.Env), Files: maps.Clone(b.Files)}
	for name := range s.secrets[b.ID] {
		if shown.Memory {
			shown.Secrets = true
		}
		delete(kept.Env, name+"_FILE") // secrets are given anew to each box
	}
	return s.keep(kept, now, shown)
}

// keep puts an image into the account.
func (s *Server) keep(kept *image, now time.Time, shown Image) *image {
	shown.ID = "img_" + strconv.FormatInt(s.state.Next, 36)
	shown.CreatedAt, shown.DeleteAt, shown.Version = now, shown.DeleteAt.UTC(), 1
	kept.Number = s.state.Next
	digest := sha256.New()
	for _, path := range slices.Sorted(maps.Keys(kept.Files)) {
		file := kept.Files[path]
		if file.Dir {
			path += "/"
		}
		fmt.Fprintf(digest, "%q %o %d\n", path, file.Mode, len(file.Content))
		digest.Write(file.Content)
		shown.Size += int64(len(file.Content))
	}
	shown.Digest = "sha256:" + hex.EncodeToString(digest.Sum(nil))
	kept.Image = shown
	s.state.Next++
	s.state.Images[shown.ID] = kept
	return kept
}

func (s honest) CreateImage(ctx context.Context, boxID string, shown Image) (made Image, err error) {
	err = s.do(ctx, func(st *state, now time.Time) error {
		b, err := st.box(boxID)
		if err != nil {
			return err
		}
		s.settle(b, now)
		if b.State != Running && b.State != Paused {
			return &APIError{Status: 409, Code: CodeWrongState, Message: fmt.Sprintf("the box is %s", b.State)}
		}
		if err := st.nameFree(shown.Name); err != nil {
			return err
		}
		made = s.capture(b, now, shown.clone()).clone()
		return nil
	})
	return made, err
}

func (st *state) nameFree(name string) error {
	for _, i := range st.Images {
		if i.Name == name {
			return &APIError{Status: 409, Code: CodeNameTaken, Message: fmt.Sprintf("image %s has the name %s", i.ID, i.Name)}
		}
	}
	return nil
}

func (s honest) DownloadImage(ctx context.Context, id string) (files map[string]BoxFile, err error) {
	err = s.do(ctx, func(st *state, _ time.Time) error {
		i, err := st.image(id)
		if err == nil {
			files = maps.Clone(i.Files)
		}
		return err
	})
	return files, err
}

func (s honest) UploadImage(ctx context.Context, shown Image, files map[string]BoxFile) (made Image, err error) {
	err = s.do(ctx, func(st *state, now time.Time) error {
		if err := st.nameFree(shown.Name); err != nil {
			return err
		}
		kept := &image{Env: map[string]string{}, Files: map[string]BoxFile{}}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if err := place(kept.Files, name, files[name]); err != nil {
				return err
			}
		}
		made = s.keep(kept, now, shown.clone()).clone()
		return nil
	})
	return made, err
}

func (s honest) GetImage(ctx context.Context, id string) (got Image, err error) {
	err = s.do(ctx, func(st *state, now time.Time) error {
		s.settleAll(now)
		i, err := st.image(id)
		if err == nil {
			got = i.clone()
		}
		return err
	})
	return got, err
}

func (s honest) ListImages(ctx context.Context, req ListRequest) (page Page[Image], err error) {
	err = s.do(ctx, func(st *state, now time.Time) error {
		s.settleAll(now)
		var all []entry[Image]
		for _, i := range st.Images {
			if matches(i.Tags, req.Tags) {
				all = append(all, entry[Image]{i.Number, i.clone()})
			}
		}
		page, err = paginate(all, req)
		return err
	})
	return page, err
}

func (s honest) UpdateImage(ctx context.Context, id string, req UpdateRequest) (after Image, err error) {
	err = s.do(ctx, func(st *state, _ time.Time) error {
		i, err := st.image(id)
		if err != nil {
			return err
		}
		if i.Version != req.IfVersion {
			return &APIError{Status: 409, Code: CodeVersion, Message: fmt.Sprintf("version %d is not %d", i.Version, req.IfVersion)}
		}
		if !req.Until.IsZero() {
			i.DeleteAt = req.Until.UTC()
		}
		maps.Copy(i.Tags, req.Tags)
		i.Version++
		after = i.clone()
		return nil
	})
	return after, err
}

func (s honest) DeleteImage(ctx context.Context, id string) error {
	return s.do(ctx, func(st *state, _ time.Time) error {
		if _, err := st.image(id); err != nil {
			return err
		}
		delete(st.Images, id)
		return nil
	})
}
