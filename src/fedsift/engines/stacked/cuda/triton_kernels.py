"""Triton kernels for stacked layers: convolution as an implicit matrix product, batch norm,
batches, loss, optimiser.

Layouts and meanings are those of layers.py, which these kernels are tested against. A convolution's
kernel also leaves the moments of every tile of its output, so that a batch norm reads it once:

    forward     tile moments (mean, sum of squares about it)
                ->  moments of the batch, by Chan's rule  ->  out
    backward    dz = dout where out > 0;  s1 = sum dz,  s2 = sum dz xhat
                dy = weight / std (dz - s1 / n - xhat s2 / n),  dweight = s2,  dbias = s1

Activations and their gradients are float32 or bfloat16, as their tensors are; whatever is computed
with them is float32, and a batch norm's moments are those of the values as stored. Sums are taken
in a fixed order: the same inputs give the same bits. `m` is always the model.
"""

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, acc, PRECISION: tl.constexpr):
    """float32 is three tf32 products: of the upper halves of both factors, and of each upper half
    with the other's lower half."""
    if PRECISION == "bfloat16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    elif PRECISION == "tf32":
        return tl.dot(a, b, acc, input_precision="tf32")
    else:
        return tl.dot(a, b, acc, input_precision="tf32x3")


@triton.jit
def convolution(
    x, w, bias, residual, y, parts, count, B, H, W, HO, WO, w_tap, w_in, w_out, w_model, bias_model,
    tiles,
    C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr,
    SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BACK: tl.constexpr, BIASED: tl.constexpr,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr, MOMENTS: tl.constexpr, COUNTED: tl.constexpr,
    PRECISION: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[p, n] = sum over (kh, kw, c) of x[pixel of p at (kh, kw), c] w[kh, kw, c, n]. BACK: towards
    the input, where with a stride only every SH-th row and SW-th column meets a given place of the
    kernel; the output is then done in SH * SW classes of pixels, each of which knows its places."""
    tile, m = tl.program_id(0), tl.program_id(1)
    blocks: tl.constexpr = (N + BN - 1) // BN
    n = (tl.program_id(2) % blocks) * BN + tl.arange(0, BN)
    p = tile * BP + tl.arange(0, BP)
    if BACK:
        row, column = tl.program_id(2) // blocks // SW, tl.program_id(2) // blocks % SW
        wide = (WO - column + SW - 1) // SW
        pixels = (HO - row + SH - 1) // SH * wide
        b, place = p // pixels, p % pixels
        h0, w0 = place // wide, place % wide
        at = (b * HO + h0 * SH + row) * WO + w0 * SW + column
    else:
        row, column = 0, 0
        pixels = HO * WO
        b, place = p // pixels, p % pixels
        h0, w0 = place // WO * SH - PH, place % WO * SW - PW
        at = p
    inside = p < B * pixels
    base = b * (H * W * C) + (h0 * W + w0) * C
    x += m.to(tl.int64) * (B * H * W * C)
    w += m.to(tl.int64) * w_model
    acc = tl.zeros((BP, BN), tl.float32)
    k = tl.arange(0, BK)
    for kh in tl.static_range(KH):
        if BACK:
            dh = (row + PH - kh + SH * KH) // SH - KH
            met_row = (row + PH - kh + SH * KH) % SH == 0
        else:
            dh = kh
            met_row = True
        in_row = inside & (h0 + dh >= 0) & (h0 + dh < H)
        if not BACK and C < 16:  # few channels: the kernel's whole row is one run of memory
            for j0 in tl.static_range(0, KW * C, BK):
                j = j0 + k
                iw = w0[:, None] + (j // C)[None, :]
                there = in_row[:, None] & (iw >= 0) & (iw < W) & (j < KW * C)[None, :]
                a = tl.load(x + (base + dh * W * C)[:, None] + j[None, :], mask=there, other=0.0)
                weights = w + (kh * KW * C + j)[:, None] * w_in + n[None, :] * w_out
                v = tl.load(weights, mask=(j < KW * C)[:, None] & (n < N)[None, :], other=0.0)
                acc = _dot(a, v, acc, PRECISION)
        else:
            for kw in tl.static_range(KW):
                if BACK:
                    dw = (column + PW - kw + SW * KW) // SW - KW
                    met = met_row & ((column + PW - kw + SW * KW) % SW == 0)
                else:
                    dw = kw
                    met = True
                if met:
                    there = in_row & (w0 + dw >= 0) & (w0 + dw < W)
                    for c0 in tl.static_range(0, C, BK):
                        c = c0 + k
                        source = x + (base + (dh * W + dw) * C)[:, None] + c[None, :]
                        a = tl.load(source, mask=there[:, None] & (c < C)[None, :], other=0.0)
                        weights = (
                            w + (kh * KW + kw) * w_tap + c[:, None] * w_in + n[None, :] * w_out
                        )
                        v = tl.load(weights, mask=(c < C)[:, None] & (n < N)[None, :], other=0.0)
                        acc = _dot(a, v, acc, PRECISION)
    if BIASED:
        acc += tl.load(bias + m.to(tl.int64) * bias_model + n, mask=n < N, other=0.0)[None, :]
    out = m.to(tl.int64) * (B * HO * WO * N) + (at * N)[:, None] + n[None, :]
    written = inside[:, None] & (n < N)[None, :]
    if RESIDUAL:
        acc += tl.load(residual + out, mask=written, other=0.0).to(tl.float32)
    if RELU:
        acc = tl.maximum(acc, 0.0)
    stored = acc.to(y.dtype.element_ty)
    tl.store(y + out, stored, mask=written)
    if MOMENTS:
        acc = stored.to(tl.float32)
        last = B * pixels
        if COUNTED:
            last = tl.load(count + m).to(tl.int32) * pixels
        real = (p < last)[:, None]
        values = tl.maximum(tl.minimum(last - tile * BP, BP), 1).to(tl.float32)
        mean = tl.sum(tl.where(real, acc, 0.0), 0) / values
        away = tl.where(real, acc - mean[None, :], 0.0)
        part = parts + (m.to(tl.int64) * tiles + tile) * (2 * N) + n
        tl.store(part, mean, mask=n < N)
        tl.store(part + N, tl.sum(away * away, 0), mask=n < N)


@triton.jit
def weight_gradient(
    x, dy, parts, B, H, W, HO, WO, steps, parts_split, parts_model,
    C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr,
    SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, PRECISION: tl.constexpr, BP: tl.constexpr,
    BN: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """dw[kh, j, n] = sum over pixels p of x[pixel of p at row kh, j] dy[p, n], where j counts (kw,
    c): a row of the kernel is one run of memory. Each program adds up `steps` blocks of pixels for
    one row."""
    split, m, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    J: tl.constexpr = KW * C
    runs: tl.constexpr = (J + BJ - 1) // BJ
    kh = z // runs % KH
    j = z % runs * BJ + tl.arange(0, BJ)
    n = z // (runs * KH) * BN + tl.arange(0, BN)
    kw = j // C
    pixels = HO * WO
    x += m.to(tl.int64) * (B * H * W * C)
    dy += m.to(tl.int64) * (B * pixels * N)
    acc = tl.zeros((BN, BJ), tl.float32)  # transposed: it is cheaper to turn dy over than x
    for step in range(steps):
        p = (split * steps + step) * BP + tl.arange(0, BP)
        inside = p < B * pixels
        b, place = p // pixels, p % pixels
        ih, iw = place // WO * SH - PH + kh, place % WO * SW - PW
        column = iw[:, None] + kw[None, :]
        there = (
            (inside & (ih >= 0) & (ih < H))[:, None]
            & (column >= 0)
            & (column < W)
            & (j < J)[None, :]
        )
        a = tl.load(x + (((b * H + ih) * W + iw) * C)[:, None] + j[None, :], mask=there, other=0.0)
        g = tl.load(
            dy + (p * N)[:, None] + n[None, :], mask=inside[:, None] & (n < N)[None, :], other=0.0
        )
        acc = _dot(tl.trans(g), a, acc, PRECISION)
    part = parts + split.to(tl.int64) * parts_split + m.to(tl.int64) * parts_model
    tl.store(
        part + (kh * J + j)[None, :] * N + n[:, None], acc, mask=(j < J)[None, :] & (n < N)[:, None]
    )


@triton.jit
def normalise(
    y, parts, weight, bias, residual, out, saved, running_mean, running_var, count, B, pixels,
    tiles, row, eps, momentum,
    N: tl.constexpr, BC: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, BT: tl.constexpr,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    block, m = tl.program_id(0), tl.program_id(1)
    n = tl.arange(0, BC)
    there = n < N
    last = B * pixels
    if COUNTED:
        last = tl.load(count + m).to(tl.int32) * pixels
    values = tl.maximum(last, 1).to(tl.float32)
    part = parts + m.to(tl.int64) * tiles * (2 * N)
    total = tl.zeros((BC,), tl.float32)
    for t0 in range(0, tiles, BT):
        t = t0 + tl.arange(0, BT)
        held = tl.maximum(tl.minimum(last - t * BP, BP), 0).to(tl.float32)
        at = part + (t * (2 * N))[:, None] + n[None, :]
        total += tl.sum(
            tl.load(at, mask=(t < tiles)[:, None] & there[None, :], other=0.0) * held[:, None], 0
        )
    mean = total / values
    squares = tl.zeros((BC,), tl.float32)
    for t0 in range(0, tiles, BT):
        t = t0 + tl.arange(0, BT)
        held = tl.maximum(tl.minimum(last - t * BP, BP), 0).to(tl.float32)
        mask = (t < tiles)[:, None] & there[None, :]
        at = part + (t * (2 * N))[:, None] + n[None, :]
        away = tl.load(at, mask=mask, other=0.0) - mean[None, :]
        kept = tl.load(at + N, mask=mask, other=0.0)
        squares += tl.sum(
            tl.where((held > 0)[:, None] & mask, kept + away * away * held[:, None], 0.0), 0
        )
    variance = squares / values
    scale = 1.0 / tl.sqrt(variance + eps)
    if block == 0:
        tl.store(saved + m * (2 * N) + n, mean, mask=there)
        tl.store(saved + m * (2 * N) + N + n, scale, mask=there)
        unbiased = variance * (values / tl.maximum(values - 1, 1))
        old_mean = tl.load(running_mean + m * N + n, mask=there)
        old_var = tl.load(running_var + m * N + n, mask=there)
        rate = tl.where(last > 0, momentum, 0.0)
        tl.store(running_mean + m * N + n, old_mean + rate * (mean - old_mean), mask=there)
        tl.store(running_var + m * N + n, old_var + rate * (unbiased - old_var), mask=there)
    gain = scale * tl.load(weight + m.to(tl.int64) * row + n, mask=there, other=0.0)
    shift = tl.load(bias + m.to(tl.int64) * row + n, mask=there, other=0.0)
    r = block * BR + tl.arange(0, BR)
    mask = (r < B * pixels)[:, None] & there[None, :]
    at = m.to(tl.int64) * (B * pixels * N) + (r * N)[:, None] + n[None, :]
    z = (tl.load(y + at, mask=mask, other=0.0).to(tl.float32) - mean[None, :]) * gain[
        None, :
    ] + shift[None, :]
    if RESIDUAL:
        z += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        z = tl.maximum(z, 0.0)
    tl.store(out + at, z, mask=mask)


@triton.jit
def _gate(
    dout, out, y, at, mask, mean, scale, gain, shift, RELU: tl.constexpr, RESIDUAL: tl.constexpr
):
    """dz and xhat of a block; where nothing was added, y shows whether the ReLU passed a value."""
    dz = tl.load(dout + at, mask=mask, other=0.0).to(tl.float32)
    away = tl.load(y + at, mask=mask, other=0.0).to(tl.float32) - mean[None, :]
    if RELU:
        if RESIDUAL:
            dz = tl.where(tl.load(out + at, mask=mask, other=0.0).to(tl.float32) > 0, dz, 0.0)
        else:
            dz = tl.where(away * gain[None, :] + shift[None, :] > 0, dz, 0.0)
    return dz, away * scale[None, :]


@triton.jit
def norm_sums(
    dout, out, y, weight, bias, saved, parts, rows, blocks, row,
    N: tl.constexpr, BC: tl.constexpr, BR: tl.constexpr, LOOP: tl.constexpr, RELU: tl.constexpr,
    RESIDUAL: tl.constexpr,
):  # fmt: skip
    """s1 and s2 over LOOP blocks of rows."""
    block, m = tl.program_id(0), tl.program_id(1)
    n = tl.arange(0, BC)
    there = n < N
    mean = tl.load(saved + m * (2 * N) + n, mask=there, other=0.0)
    scale = tl.load(saved + m * (2 * N) + N + n, mask=there, other=0.0)
    gain = scale * tl.load(weight + m.to(tl.int64) * row + n, mask=there, other=0.0)
    shift = tl.load(bias + m.to(tl.int64) * row + n, mask=there, other=0.0)
    s1, s2 = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for i in range(LOOP):
        r = (block * LOOP + i) * BR + tl.arange(0, BR)
        mask = (r < rows)[:, None] & there[None, :]
        at = m.to(tl.int64) * (rows * N) + (r * N)[:, None] + n[None, :]
        dz, xhat = _gate(dout, out, y, at, mask, mean, scale, gain, shift, RELU, RESIDUAL)
        s1 += tl.sum(dz, 0)
        s2 += tl.sum(dz * xhat, 0)
    part = parts + (m * blocks + block) * (2 * N) + n
    tl.store(part, s1, mask=there)
    tl.store(part + N, s2, mask=there)


@triton.jit
def norm_gradient(
    dout, out, y, weight, bias, saved, parts, dy, dresidual, dweight, dbias, count, B, pixels,
    blocks, row, gradient_row,
    N: tl.constexpr, BC: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr, RELU: tl.constexpr,
    RESIDUAL: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    block, m = tl.program_id(0), tl.program_id(1)
    n = tl.arange(0, BC)
    there = n < N
    rows = B * pixels
    last = rows
    if COUNTED:
        last = tl.load(count + m).to(tl.int32) * pixels
    values = tl.maximum(last, 1).to(tl.float32)
    mean = tl.load(saved + m * (2 * N) + n, mask=there, other=0.0)
    scale = tl.load(saved + m * (2 * N) + N + n, mask=there, other=0.0)
    gain = scale * tl.load(weight + m.to(tl.int64) * row + n, mask=there, other=0.0)
    shift = tl.load(bias + m.to(tl.int64) * row + n, mask=there, other=0.0)
    s1, s2 = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for t0 in range(0, blocks, BT):
        t = t0 + tl.arange(0, BT)
        mask = (t < blocks)[:, None] & there[None, :]
        part = parts + ((m * blocks + t) * (2 * N))[:, None] + n[None, :]
        s1 += tl.sum(tl.load(part, mask=mask, other=0.0), 0)
        s2 += tl.sum(tl.load(part + N, mask=mask, other=0.0), 0)
    if block == 0:
        tl.store(dweight + m.to(tl.int64) * gradient_row + n, s2, mask=there)
        tl.store(dbias + m.to(tl.int64) * gradient_row + n, s1, mask=there)
    r = block * BR + tl.arange(0, BR)
    mask = (r < rows)[:, None] & there[None, :]
    at = m.to(tl.int64) * (rows * N) + (r * N)[:, None] + n[None, :]
    dz, xhat = _gate(dout, out, y, at, mask, mean, scale, gain, shift, RELU, RESIDUAL)
    if RESIDUAL:
        tl.store(dresidual + at, dz, mask=mask)
    pull = gain[None, :] * (dz - (s1 / values)[None, :] - xhat * (s2 / values)[None, :])
    tl.store(dy + at, tl.where((r < last)[:, None], pull, 0.0), mask=mask)


@triton.jit
def _pixels(
    values, row, down, right, mirrored, mean, std, m, e,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PER_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Values e of one sample of model m, cropped, mirrored and normalised."""
    c, w, h = e % C, (e // C) % W, e // (C * W)
    sh = h - down
    sw = tl.where(mirrored == 1, W - 1 - w, w) - right
    inside = (e < C * H * W) & (sh >= 0) & (sh < H) & (sw >= 0) & (sw < W)
    raw = tl.load(values + row * (C * H * W) + (c * H + sh) * W + sw, mask=inside, other=0).to(
        tl.float32
    )
    figure = m * C + c if PER_CHANNEL else m
    centre, spread = tl.load(mean + figure), tl.load(std + figure)
    return tl.where(inside, (raw - centre) / spread, 0.0)


@triton.jit
def _row(table, position, k, CLASSES: tl.constexpr):
    return tl.load(table + position.to(tl.int64) * CLASSES + k, mask=k < CLASSES, other=0.0)


@triton.jit
def draw_batch(
    values, rows, positions, moves, targets, counts, mean, std, step, x, t, count, shares, teacher,
    taught, B, models,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CLASSES: tl.constexpr, BE: tl.constexpr,
    BC: tl.constexpr, MOVED: tl.constexpr, PER_CHANNEL: tl.constexpr, TAUGHT: tl.constexpr,
    MIXED: tl.constexpr,
):  # fmt: skip
    """The batch of `step`: sample b of model m cropped, mirrored and normalised, its target, and
    with TAUGHT the teacher's logits. With MIXED, all are mixed with those of the next sample of the
    batch: both are drawn here, so that nothing is stored unmixed."""
    b, m = tl.program_id(0), tl.program_id(1)
    now = tl.load(step)
    if b == 0:
        tl.store(count + m, tl.load(counts + now * models + m))
    at = (now * models + m) * B + b
    position = tl.load(positions + at)
    row = tl.load(rows + position).to(tl.int64)
    down, right, mirrored = 0, 0, 0
    if MOVED:
        down = tl.load(moves + at * 3).to(tl.int32)
        right = tl.load(moves + at * 3 + 1).to(tl.int32)
        mirrored = tl.load(moves + at * 3 + 2).to(tl.int32)
    if MIXED:
        share = tl.load(shares + now * models + m)
        real = tl.load(counts + now * models + m)
        after = tl.where(b + 1 < real, at + 1, at - b)
        next_position = tl.load(positions + after)
        next_row = tl.load(rows + next_position).to(tl.int64)
        next_down, next_right, next_mirrored = 0, 0, 0
        if MOVED:
            next_down = tl.load(moves + after * 3).to(tl.int32)
            next_right = tl.load(moves + after * 3 + 1).to(tl.int32)
            next_mirrored = tl.load(moves + after * 3 + 2).to(tl.int32)
    for e0 in range(0, C * H * W, BE):
        e = e0 + tl.arange(0, BE)
        value = _pixels(
            values, row, down, right, mirrored, mean, std, m, e, C, H, W, PER_CHANNEL
        )  # fmt: skip
        if MIXED:
            beside = _pixels(
                values, next_row, next_down, next_right, next_mirrored, mean, std, m, e, C, H, W,
                PER_CHANNEL,
            )  # fmt: skip
            value = share * value + (1 - share) * beside
        tl.store(x + (m * B + b).to(tl.int64) * (C * H * W) + e, value, mask=e < C * H * W)
    k = tl.arange(0, BC)
    into = (m * B + b) * CLASSES + k
    target = _row(targets, position, k, CLASSES)
    if MIXED:
        target = share * target + (1 - share) * _row(targets, next_position, k, CLASSES)
    tl.store(t + into, target, mask=k < CLASSES)
    if TAUGHT:
        lesson = _row(teacher, position, k, CLASSES)
        if MIXED:
            lesson = share * lesson + (1 - share) * _row(teacher, next_position, k, CLASSES)
        tl.store(taught + into, lesson, mask=k < CLASSES)


@triton.jit
def _softmax(z):
    e = tl.exp(z - tl.max(z, 0))
    return e / tl.sum(e, 0)


@triton.jit
def _softmax_without(z, k, true):
    """Over all classes but one, which gets 0: it is put below whatever a network answers."""
    return _softmax(tl.where(k == true, -3.0e38, z))


@triton.jit
def loss_gradient(
    z, t, out, counts, prior, taught, B, temperature, ntd,
    CLASSES: tl.constexpr, BC: tl.constexpr, NTD: tl.constexpr,
):  # fmt: skip
    """(softmax(z / T + prior) sum(t) - t) / T / batch for real samples, 0 for padding
    (loss_gradient). A prior of zeros changes no bit. With NTD, ntd (s~ - t~) / batch is added."""
    b, m = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts + m)
    k = tl.arange(0, BC)
    at = (m * B + b) * CLASSES + k
    logits = tl.load(z + at, mask=k < CLASSES, other=-float("inf"))
    bias = tl.load(prior + m * CLASSES + k, mask=k < CLASSES, other=0.0)
    target = tl.load(t + at, mask=k < CLASSES, other=0.0)
    size = tl.maximum(count, 1).to(tl.float32)
    s = _softmax(logits / temperature + bias)
    pull = (s * tl.sum(target, 0) - target) / (temperature * size)
    if NTD:
        lesson = tl.load(taught + at, mask=k < CLASSES, other=-float("inf"))
        true = tl.argmax(tl.where(k < CLASSES, target, -float("inf")), 0)
        away = _softmax_without(logits, k, true) - _softmax_without(lesson, k, true)
        pull += ntd * away / size
    tl.store(out + at, tl.where(b < count, pull, 0.0), mask=k < CLASSES)


@triton.jit
def update_weights(
    w, g, start, a, s, rates, counts, corrections, step, P, models, momentum, decay, prox,
    KIND: tl.constexpr, NESTEROV: tl.constexpr, PROX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One optimiser step for every model that has a batch; a and s are its two running means. With
    PROX, the gradient has prox (w - start) added."""
    block, m = tl.program_id(0), tl.program_id(1)
    now = tl.load(step)
    rate = tl.load(rates + now * models + m)
    working = tl.load(counts + now * models + m) > 0
    i = block * BLOCK + tl.arange(0, BLOCK)
    mask = (i < P) & working
    at = m.to(tl.int64) * P + i
    weight, gradient = tl.load(w + at, mask=mask), tl.load(g + at, mask=mask)
    if PROX:
        gradient += prox * (weight - tl.load(start + at, mask=mask))
    if KIND == "adamw":
        weight *= 1 - rate * decay
    else:
        gradient += decay * weight
    if KIND == "sgd":
        velocity = momentum * tl.load(a + at, mask=mask) + gradient
        tl.store(a + at, velocity, mask=mask)
        if NESTEROV:
            velocity = gradient + momentum * velocity
        tl.store(w + at, weight - rate * velocity, mask=mask)
    else:
        mean = tl.load(a + at, mask=mask)
        mean += 0.1 * (gradient - mean)
        square = 0.999 * tl.load(s + at, mask=mask) + 0.001 * gradient * gradient
        tl.store(a + at, mean, mask=mask)
        tl.store(s + at, square, mask=mask)
        first, second = tl.load(corrections + now * 2), tl.load(corrections + now * 2 + 1)
        size = tl.sqrt(square) / second + 1e-8
        tl.store(w + at, weight - rate / first * mean / size, mask=mask)
