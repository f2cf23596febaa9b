// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package backend

// The failpoints around the calls to an extension's process: before a call is
// sent, and when something has come back. An error at the second is an answer
// that was lost.

import (
	"context"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
)

const (
	configureSending       failpoint.Point = "call.configure.sending"
	configureReceived      failpoint.Point = "call.configure.received"
	createSending          failpoint.Point = "call.create.sending"
	createReceived         failpoint.Point = "call.create.received"
	getSending             failpoint.Point = "call.get.sending"
	getReceived            failpoint.Point = "call.get.received"
	listSending            failpoint.Point = "call.list.sending"
	listReceived           failpoint.Point = "call.list.received"
	execSending            failpoint.Point = "call.exec.sending"
	execReceived           failpoint.Point = "call.exec.received"
	claimSending           failpoint.Point = "call.claim.sending"
	claimReceived          failpoint.Point = "call.claim.received"
	destroySending         failpoint.Point = "call.destroy.sending"
	destroyReceived        failpoint.Point = "call.destroy.received"
	snapshotSending        failpoint.Point = "call.snapshot.sending"
	snapshotReceived       failpoint.Point = "call.snapshot.received"
	getSnapshotSending     failpoint.Point = "call.getsnapshot.sending"
	getSnapshotReceived    failpoint.Point = "call.getsnapshot.received"
	listSnapshotsSending   failpoint.Point = "call.listsnapshots.sending"
	listSnapshotsReceived  failpoint.Point = "call.listsnapshots.received"
	deleteSnapshotSending  failpoint.Point = "call.deletesnapshot.sending"
	deleteSnapshotReceived failpoint.Point = "call.deletesnapshot.received"
)

// callPoints are the points of each method: sending, received.
var callPoints = map[string][2]failpoint.Point{
	"Configure":      {configureSending, configureReceived},
	"Create":         {createSending, createReceived},
	"Get":            {getSending, getReceived},
	"List":           {listSending, listReceived},
	"Exec":           {execSending, execReceived},
	"Claim":          {claimSending, claimReceived},
	"Destroy":        {destroySending, destroyReceived},
	"Snapshot":       {snapshotSending, snapshotReceived},
	"GetSnapshot":    {getSnapshotSending, getSnapshotReceived},
	"ListSnapshots":  {listSnapshotsSending, listSnapshotsReceived},
	"DeleteSnapshot": {deleteSnapshotSending, deleteSnapshotReceived},
}

// withFailpoints adds what hits them to the options of a connection.
func withFailpoints(options []grpc.DialOption) []grpc.DialOption {
	if !failpoint.On {
		return options
	}
	return append(options, grpc.WithChainUnaryInterceptor(hitUnary), grpc.WithChainStreamInterceptor(hitStream))
}

func hitUnary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	points, ok := callPoints[path.Base(method)]
	if !ok {
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	if err := hitCall(points[0]); err != nil {
		return err
	}
	if err := invoke(ctx, method, req, reply, conn, opts...); err != nil {
		return err
	}
	return hitCall(points[1])
}

func hitStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	points, ok := callPoints[path.Base(method)]
	if !ok {
		return open(ctx, desc, conn, method, opts...)
	}
	if err := hitCall(points[0]); err != nil {
		return nil, err
	}
	stream, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		return nil, err
	}
	return hitting{stream, points[1]}, nil
}

// hitting is a stream that hits a point at each message that comes.
type hitting struct {
	grpc.ClientStream
	received failpoint.Point
}

func (h hitting) RecvMsg(message any) error {
	if err := h.ClientStream.RecvMsg(message); err != nil {
		return err
	}
	return hitCall(h.received)
}

func hitCall(p failpoint.Point) error {
	if err := failpoint.Hit(p); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}
