// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// feed sends a reader of the caller as frames and then its end. The reader's
// error goes to failed, before the other side can answer to it; that the
// other side no longer listens is seen where its answer is read.
func feed(r io.Reader, failed chan<- error, frame func([]byte) error, end func(*pb.InputEnd) error) {
	buffer := make([]byte, chunkSize)
	for {
		n, err := r.Read(buffer)
		if n > 0 && frame(buffer[:n]) != nil {
			return
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = end(&pb.InputEnd{})
			return
		case err != nil:
			failed <- err
			_ = end(&pb.InputEnd{Error: encodeText(err.Error())})
			return
		}
	}
}

func (c *client) Exec(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
	if err := ctx.Err(); err != nil {
		return sdk.ExecResult{}, fmt.Errorf("extension %s: Exec: %w", c.opts.Name, context.Cause(ctx))
	}
	for i, arg := range opts.Command {
		if err := validText(fmt.Sprintf("command[%d]", i), arg); err != nil {
			return sdk.ExecResult{}, err
		}
	}
	if err := errors.Join(validTexts("env", opts.Env), validText("workdir", opts.Workdir), validText("user", opts.User)); err != nil {
		return sdk.ExecResult{}, err
	}
	wire, end := c.begin(ctx)
	defer end()
	s, err := c.wire.Exec(wire)
	if err != nil {
		return sdk.ExecResult{}, c.fail(ctx, "Exec", err)
	}
	// An error of Send says only that there is an answer to read.
	_ = s.Send(&pb.ExecRequest{Message: &pb.ExecRequest_Start{Start: &pb.ExecStart{
		Target: encodeTarget(opts.Target), Command: opts.Command, Env: opts.Env, User: opts.User, Workdir: opts.Workdir,
		Timeout: encodeDuration(opts.Timeout), Stdin: opts.Stdin != nil, Stdout: opts.Stdout != nil, Stderr: opts.Stderr != nil,
	}}})
	input := make(chan error, 1)
	if opts.Stdin != nil {
		go feed(opts.Stdin, input, func(frame []byte) error {
			return s.Send(&pb.ExecRequest{Message: &pb.ExecRequest_Stdin{Stdin: frame}})
		}, func(end *pb.InputEnd) error {
			return errors.Join(s.Send(&pb.ExecRequest{Message: &pb.ExecRequest_StdinEnd{StdinEnd: end}}), s.CloseSend())
		})
	} else {
		_ = s.CloseSend()
	}

	var result sdk.ExecResult
	d := new(decoder)
	err = receive(ctx, c, "Exec", s, func(message *pb.ExecResponse) (bool, error) {
		if err := c.writeFrame("Exec", opts.Stdout, message.GetStdout()); err != nil {
			return false, fmt.Errorf("writing the command's output: %w", err)
		}
		if err := c.writeFrame("Exec", opts.Stderr, message.GetStderr()); err != nil {
			return false, fmt.Errorf("writing the command's error output: %w", err)
		}
		if message.GetEnd() == nil {
			return false, nil
		}
		result = sdk.ExecResult{
			ExitCode: int(d.count("exit_code", int64(message.GetEnd().GetExitCode()))), TimedOut: message.GetEnd().GetTimedOut(),
		}
		return true, nil
	})
	select {
	case readErr := <-input:
		return result, errors.Join(fmt.Errorf("reading the command's input: %w", readErr), err)
	default: // all of it was read, or the command ended without
	}
	if err != nil {
		return sdk.ExecResult{}, err
	}
	return checked(c, "Exec", d, result)
}

func (c *client) CopyIn(ctx context.Context, opts sdk.CopyInOptions) (sdk.CopyInResult, error) {
	if err := ctx.Err(); err != nil {
		return sdk.CopyInResult{}, fmt.Errorf("extension %s: CopyIn: %w", c.opts.Name, context.Cause(ctx))
	}
	if err := validText("path", opts.Path); err != nil {
		return sdk.CopyInResult{}, err
	}
	wire, end := c.begin(ctx)
	defer end()
	s, err := c.wire.CopyIn(wire)
	if err != nil {
		return sdk.CopyInResult{}, c.fail(ctx, "CopyIn", err)
	}
	_ = s.Send(&pb.CopyInRequest{Message: &pb.CopyInRequest_Start{Start: &pb.CopyInStart{
		Target: encodeTarget(opts.Target), Path: opts.Path,
	}}})
	input := make(chan error, 1)
	go feed(opts.Archive, input, func(frame []byte) error {
		return s.Send(&pb.CopyInRequest{Message: &pb.CopyInRequest_Data{Data: frame}})
	}, func(end *pb.InputEnd) error {
		return errors.Join(s.Send(&pb.CopyInRequest{Message: &pb.CopyInRequest_End{End: end}}), s.CloseSend())
	})
	// Not CloseAndRecv: the extension may answer while the archive blocks.
	resp := new(pb.CopyInResponse)
	err = s.RecvMsg(resp)
	select {
	case readErr := <-input:
		return sdk.CopyInResult{}, fmt.Errorf("reading the archive: %w", readErr)
	default:
	}
	if err != nil {
		return sdk.CopyInResult{}, c.fail(ctx, "CopyIn", err)
	}
	bytes, err := c.counted("CopyIn", resp.GetBytes())
	return sdk.CopyInResult{Bytes: bytes}, err
}
