// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package saasstub

import (
	"context"
	"errors"
)

func (s *Server) withFile(context.Context, func() error) error {
	return errors.New("a store in a file needs a Unix system")
}
