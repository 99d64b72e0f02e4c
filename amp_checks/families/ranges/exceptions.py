"""Overloads of the ops table that have no range, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

NO_KERNEL = "it has no 16-bit kernel on the CPU, and so no range: it raises, and is run in FP32 (its own rows say how)"
DEVICE = "a kernel of a device that is not here, or of a library that asks for special hardware"
NAMES = "the op of the same name without names for dimensions has the row"
COMPLEX = "it makes complex numbers of its input's bits: no arithmetic, no error"
STEPS = "it rounds to steps of its own on purpose"
NO_BFLOAT16 = "the CPU has no 16-bit kernel of it up to torch 2.13, and none of bfloat16 since"
NO_KERNEL_UP_TO_2_11 = "torch 2.11 has no 16-bit kernel of it on the CPU"

_RAISES = """
    _grid_sampler_2d_cpu_fallback _lu_with_info _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    cholesky cholesky_inverse cholesky_solve ctc_loss.IntList ctc_loss.Tensor
    fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft
    fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn stft stft.center
    geqrf inverse linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cond.p_str linalg_eig linalg_eigh linalg_eigvals
    linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank
    linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank.tol_tensor
    linalg_matrix_sqrth linalg_qr linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve lu_solve
    multilabel_margin_loss_forward nanquantile nanquantile.scalar nuclear_norm nuclear_norm.dim orgqr ormqr pdist
    pinverse qr quantile quantile.scalar svd triangular_solve
"""
_DEVICE = """
    _cudnn_rnn _mps_convolution _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell
    cudnn_convolution cudnn_convolution_transpose mkldnn_rnn_layer
"""
_NAMES = """
    cumprod.dimname cumsum.dimname index_copy.dimname log_softmax.Dimname norm.names_ScalarOpt_dim prod.dim_Dimname
    softmax.Dimname sum.dim_DimnameList
"""

EXCEPTIONS: Mapping[str, str] = {
    **dict.fromkeys(_RAISES.split(), NO_KERNEL),
    **dict.fromkeys(_DEVICE.split(), DEVICE),
    **dict.fromkeys(_NAMES.split(), NAMES),
    "view_as_complex": COMPLEX,
    "fake_quantize_per_tensor_affine": STEPS,
    "polar": NO_BFLOAT16,
    "trace": NO_KERNEL_UP_TO_2_11,
}
"""Overload of the ops table that some device's autocast leaves in 16 bits, and that has no range -> why.

The one place for such exceptions; every other overload of the table has a row in `amp_checks.families.ranges.cases`.
"""
