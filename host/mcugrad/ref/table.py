"""Step kind -> kernel, by name: the reference's counterpart of the kernel table in C."""

from __future__ import annotations

from collections.abc import Mapping

from mcugrad.ref import (
    add,
    bce,
    bias,
    conv2d,
    copy,
    dwconv2d,
    linear,
    lut,
    mask,
    minmax,
    mse,
    mul,
    pool,
    prelu,
    resize,
    softmax,
    tick,
    update,
    xent,
)
from mcugrad.ref.memory import Kernel

KERNELS: Mapping[str, Kernel] = {
    f.__name__: f
    for f in (
        conv2d.conv2d_fwd_s8,
        conv2d.conv2d_bwd_x_s8,
        conv2d.conv2d_upd_q16,
        conv2d.conv2d_upd_sr8,
        dwconv2d.dwconv2d_fwd_s8,
        dwconv2d.dwconv2d_bwd_x_s8,
        dwconv2d.dwconv2d_upd_q16,
        dwconv2d.dwconv2d_upd_sr8,
        linear.linear_fwd_s8,
        linear.linear_fwd_s32,
        linear.requant_fwd_s8,
        linear.linear_bwd_x_s8,
        linear.linear_upd_q16,
        linear.linear_upd_sr8,
        pool.avgpool_fwd_s8,
        pool.avgpool_bwd_x_s8,
        pool.maxpool_fwd_s8,
        pool.maxpool_bwd_x_s8,
        pool.mean_fwd_s8,
        add.add_fwd_s8,
        add.add_bwd_x_s8,
        add.sum_bwd_x_s8,
        mul.mul_fwd_s8,
        mul.mul_bwd_a_s8,
        mul.mul_bwd_b_s8,
        minmax.minmax_fwd_s8,
        minmax.minmax_bwd_x_s8,
        lut.lut_fwd_s8,
        lut.lut_bwd_x_s8,
        prelu.prelu_fwd_s8,
        prelu.prelu_bwd_x_s8,
        copy.copy_s8,
        mask.mask_s8,
        resize.resize_fwd_s8,
        resize.resize_bwd_x_s8,
        softmax.softmax_fwd_s8,
        softmax.softmax_bwd_x_s8,
        xent.xent_s32,
        bce.bce_s32,
        mse.mse_s32,
        mse.mse_s8,
        bias.bias_upd_s32,
        update.commit_s16,
        update.commit_s32,
        tick.tick,
    )
}
