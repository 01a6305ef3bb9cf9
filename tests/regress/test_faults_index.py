"""Where each fault of the project's list is tested, section by section. The list names what users of other systems ran into."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

import pytest

from mcugrad.paths import root

SECTIONS: Mapping[str, Sequence[int]] = {
    "A": (1, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 17, 18, 19, 21, 22, 24),
    "B": (25, 26, 27, 28, 30, 31, 32, 34, 35, 37, 39, 40, 41, 43, 44, 45, 48, 49, 50),
    "C": (51, 52, 54, 55, 58, 59, 61, 62, 64, 65, 66),
    "D": (67, 68, 69, 71, 72, 73, 74, 76, 77, 78, 79, 81),
    "E": (83, 84, 86, 87, 88, 90, 91, 92, 94, 95, 96, 98),
    "F": (100, 102, 104),
    "G": (115,),
}
"""Entries of the list. 80 is about native modules of MicroPython, which there are none of."""

INDEX: Mapping[str, Sequence[str]] = {
    "A1 one scale per row of a linear layer": (
        "regress/test_faults_a.py::test_a01_forward_and_update_of_a_linear_layer_use_the_scale_of_the_row",
        "host/test_importer_faults.py::test_fault_a1_every_row_of_a_linear_layer_has_its_own_scale",
        "host/test_importer_faults.py::test_fault_a1_scales_along_the_inputs_are_refused",
        "unit/test_gradient_quality.py::test_gradients_under_uneven_weight_scales",
    ),
    "A3 the scheme of a model by name": (
        "regress/test_faults_a.py::test_a03_every_scheme_ends_with_exit_3_its_name_and_how_to_export_again",
        "regress/test_faults_a.py::test_a03_an_int8_model_is_planned",
        "host/test_importer_faults.py::test_fault_a3_every_scheme_is_named_and_says_how_to_export_again",
        "host/test_importer_faults.py::test_fault_a3_int8_is_taken",
    ),
    "A4 bias scales and saturated biases": (
        "host/test_importer_faults.py::test_fault_a4_a_bias_scale_that_is_not_the_product_is_refused_with_both_numbers",
        "host/test_importer_faults.py::test_fault_a4_a_bias_at_the_end_of_int32_is_noted",
    ),
    "A5 a pruned channel": (
        "regress/test_faults_a.py::test_a05_a_channel_with_scale_0_is_never_updated_and_is_listed",
        "host/test_importer_faults.py::test_fault_a5_a_channel_with_scale_0_is_kept_as_0_and_gives_zero",
    ),
    "A6 calibration data that says nothing": (
        "host/test_quantize.py::test_data_that_says_nothing_names_the_tensor",
        "host/test_quantize.py::test_an_activation_that_stays_zero_gets_a_range_and_a_note",
        "host/test_quantize_cli.py::test_data_that_says_nothing_is_refused",
    ),
    "A7 a multiplier of 1 and more": (
        "regress/test_faults_a.py::test_a07_backward_through_an_effective_multiplier_above_1",
        "host/test_importer_faults.py::test_fault_a7_an_effective_multiplier_above_1",
    ),
    "A8 the fixed output of logistic and softmax": (
        "host/test_importer_faults.py::test_fault_a8_logistic_and_softmax_have_one_output_scale",
    ),
    "A10 a grey image through a depthwise layer": (
        "regress/test_faults_a.py::test_a10_gradients_of_a_depthwise_layer_on_a_grey_image",
        "host/test_importer_faults.py::test_fault_a10_a_grey_image_through_a_depthwise_layer_with_a_multiplier",
    ),
    "A12 no zero point": ("host/test_onnx_import.py::test_a_missing_zero_point_is_0_of_the_type_of_the_codes",),
    "A14 training an int8 ONNX model": (
        "host/test_onnx_train.py::test_a_qdq_block_trains_and_its_loss_falls",
        "host/test_onnx_train.py::test_one_step_on_one_sample_lowers_its_loss",
        "host/test_onnx_train.py::test_reference_and_c_train_alike",
    ),
    "A15 an op without gradient": (
        "regress/test_faults_a.py::test_a15_an_op_without_gradient_is_named_with_the_cut_that_is_possible",
        "unit/test_differentiate.py::test_what_spreads_without_gradient_may_stand_in_the_frozen_part",
        "e2e/test_verify_command.py::test_the_table_says_what_the_rules_and_importers_say",
    ),
    "A17 no traceback": (
        "regress/test_faults_a.py::test_a17_a_defect_in_an_op_handler_is_one_line",
        "regress/test_faults_a.py::test_a17_an_unknown_operator_is_no_defect",
        "e2e/test_errors.py::test_a_defect_is_one_line_too",
    ),
    "A18 stubs and cut files": (
        "host/test_importer_faults.py::test_fault_a18_a_stub_is_refused_soon_and_in_little_memory",
        "host/test_importer_faults.py::test_fault_a18_a_file_cut_at_every_byte",
        "e2e/test_errors.py::test_a_model_cut_anywhere",
    ),
    "A19 damaged indices, in files and in plans": (
        "host/test_importer_faults.py::test_fault_a19_every_index_and_size_of_a_good_file_changed",
        "host/test_importer_faults.py::test_fault_a19_a_buffer_that_is_not_there_is_named",
        "kernels/test_runtime.py::test_hostile_plans_never_leave_their_regions",
        "e2e/test_sanitizers.py::test_one_wrong_bit_in_a_plan",
        "e2e/test_sanitizers.py::test_every_wrong_bit_in_every_plan",
    ),
    "A21 external data": (
        "host/test_onnx_refusals.py::test_external_data_never_leaves_the_folder_of_the_model",
        "host/test_onnx_refusals.py::test_external_data_that_is_missing_or_short_is_named",
    ),
    "A22 variables and custom operators": (
        "host/test_importer_faults.py::test_fault_a22_what_only_a_training_graph_has_is_named",
        "host/test_importer.py::test_a_custom_operator_is_named",
    ),
    "A24 what is int8 and what is not": (
        "regress/test_faults_a.py::test_a24_inspect_shows_types_the_share_of_int8_and_the_border",
        "host/test_importer_faults.py::test_fault_a24_the_share_of_int8_and_the_types_of_the_border",
    ),
    "B25 the first layer that differs": (
        "e2e/test_verify_command.py::test_every_layer",
        "e2e/test_verify_command.py::test_a_wrong_layer_is_named_layer_by_layer",
        "unit/test_verify.py::test_layerwise_names_the_first_wrong_layer",
    ),
    "B26 two roundings or one": (
        "unit/test_fixed.py::test_requant_rounds_twice_or_once",
        "unit/test_fixed.py::test_the_two_roundings_differ_in_half_a_percent",
        "kernels/test_primitives.py::test_requant_rounds_twice_or_once",
    ),
    "B27 the rounding belongs to the op": (
        "regress/test_faults_b.py::test_b27_every_forward_step_that_requantizes_has_its_rounding",
        "regress/test_faults_b.py::test_b27_the_layer_oracle_runs_reference_kernels_without_a_delegate",
        "unit/test_forward.py::test_one_rounding_is_not_two",
        "host/test_onnx_import.py::test_an_onnx_graph_is_rounded_once",
    ),
    "B28 shifted rows of a transposed convolution": (
        "regress/test_faults_b.py::test_b28_no_row_of_a_convolutions_error_is_shifted",
        "kernels/test_conv2d.py::test_bwd_x_s8",
    ),
    "B30 sums of weights that are stale": (
        "regress/test_faults_b.py::test_b30_after_each_of_ten_steps_the_forward_pass_is_that_of_the_new_weights",
    ),
    "B31 the tails of vector kernels": (
        "regress/test_faults_b.py::test_b31_every_number_of_channels",
        "regress/test_faults_b.py::test_b31_every_batch_of_a_linear_layer",
        "e2e/test_sanitizers.py::test_a_training_session",
    ),
    "B32 the rounding of average pools": (
        "regress/test_faults_b.py::test_b32_pools_at_the_ends_and_at_halves",
        "kernels/test_oracle.py::test_pools",
        "kernels/test_oracle.py::test_mean",
    ),
    "B34 every mask of a sparse update": (
        "unit/test_differentiate.py::test_every_mask_of_a_chain_trains_as_full_training",
        "unit/test_differentiate.py::test_pruned_branches_train_as_full_training",
    ),
    "B35 bias only": ("unit/test_differentiate.py::test_bias_only_is_the_bias_part_of_full_training",),
    "B37 extreme logits": (
        "regress/test_faults_b.py::test_b37_loss_and_gradient_of_extreme_logits_are_finite",
        "kernels/test_xent.py::test_values",
        "kernels/test_bce.py::test_values",
    ),
    "B39 updates rounded to zero": (
        "regress/test_faults_b.py::test_b39_stochastic_rounding_adds_up_what_rounding_to_nearest_loses",
        "regress/test_faults_b.py::test_b39_a_run_whose_updates_are_rounded_to_zero_says_so",
        "regress/test_faults_b.py::test_b39_a_run_that_trains_no_weights_has_none_to_count",
        "unit/test_activations.py::test_only_trained_weights_count_as_unchanged",
        "kernels/test_update.py::test_stochastic_rounding_is_unbiased",
    ),
    "B40 the stream of random numbers": (
        "regress/test_faults_b.py::test_b40_no_two_steps_or_tensors_draw_the_same",
        "regress/test_faults_b.py::test_b40_one_seed_is_one_run_here_and_in_c_and_a_restored_run_draws_on",
        "unit/test_lower.py::test_each_trained_layer_draws_from_its_own_stream",
        "e2e/test_train.py::test_both_boards_leave_the_same_bytes",
    ),
    "B41 divergence": ("e2e/test_interrupt.py::test_diverged_training_saves_too",),
    "B43 predictions, not losses": (
        "regress/test_faults_b.py::test_b43_board_and_reference_have_one_confusion_matrix_for_a_checkpoint",
        "e2e/test_train.py::test_eval_of_model_and_checkpoint_agree",
    ),
    "B44 accumulation": (
        "regress/test_faults_b.py::test_b44_every_sample_that_is_not_skipped_is_one_update",
        "regress/test_faults_b.py::test_b44_a_batch_of_four_is_four_batches_of_one_and_nothing_is_left_over",
        "regress/test_faults_b.py::test_b44_the_rate_of_a_batch_goes_with_the_mean",
        "unit/test_batch.py::test_a_batch_is_the_sum_of_rounded_steps_and_one_commit",
        "unit/test_batch.py::test_a_batch_ends_after_n_samples_and_with_the_epoch",
        "e2e/test_batch_training.py::test_state_is_the_reference_s",
    ),
    "B45 tables that change, and lengths beyond 16 bits": (
        "regress/test_faults_b.py::test_b45_a_hundred_steps_leave_the_plan_as_it_was_and_can_be_repeated",
        "regress/test_faults_b.py::test_b45_a_tensor_of_more_than_65535_bytes",
        "kernels/test_machines.py::test_reset_and_state_restore",
    ),
    "B48 one kind for another": (
        "regress/test_faults_b.py::test_b48_the_record_of_another_kind_does_not_compile",
        "regress/test_faults_b.py::test_b48_the_code_of_another_kind_is_refused_at_init",
        "kernels/test_runtime.py::test_a_damaged_step_is_refused_by_its_index",
    ),
    "B49 activations that are stuck": (
        "regress/test_faults_b.py::test_b49_a_run_notes_a_layer_that_is_stuck",
        "unit/test_activations.py::test_a_relu_that_is_always_closed",
        "unit/test_activations.py::test_an_output_that_is_cut_off",
        "e2e/test_verify_command.py::test_a_wrong_layer_ends_with_code_7_and_its_name",
    ),
    "B50 bytes that nobody writes": (
        "regress/test_faults_b.py::test_b50_no_output_depends_on_what_was_in_memory",
        "regress/test_faults_b.py::test_b50_every_kind_of_op",
        "unit/test_planner.py::test_c52_every_read_sees_what_was_written",
    ),
    "C51 tensors that live at the same step": (
        "unit/test_planner.py::test_c51_bytes_that_hold_together_are_never_shared",
        "unit/test_planner.py::test_c51_values_in_one_piece_are_near_the_optimum",
        "unit/test_planner.py::test_c51_values_in_pieces_are_near_the_optimum",
    ),
    "C52 regions that overlap": (
        "unit/test_planner.py::test_c52_every_read_of_every_kind_sees_what_was_written",
        "unit/test_c_array.py::test_a_wrong_number_does_not_compile",
        "unit/test_prove.py::test_what_the_compiler_makes_is_proven",
        "unit/test_prove.py::test_two_values_that_hold_at_once_in_the_same_bytes",
        "e2e/test_memory.py::test_the_json_of_plan",
    ),
    "C54 the reported size is enough, and less is an error": (
        "regress/test_faults_c.py::test_c54_exactly_the_planned_bytes_are_enough",
        "regress/test_faults_c.py::test_c54_less_is_an_error_with_what_is_needed_and_what_is_there",
        "e2e/test_memory.py::test_exactly_what_a_board_has_runs_and_one_unit_more_is_refused",
        "e2e/test_memory.py::test_exactly_the_need_trains_and_one_unit_less_names_what_fits",
    ),
    "C55 exact bytes, the macro, the largest step": (
        "regress/test_faults_c.py::test_c55_plan_says_the_bytes_the_macro_and_the_step_that_needs_most",
        "e2e/test_memory.py::test_no_document_says_to_try_sizes",
    ),
    "C58 buffers that are too small": ("regress/test_faults_c.py::test_c58_a_thousand_steps_write_nothing_around_their_memory",),
    "C59 memory that is not aligned": (
        "regress/test_faults_c.py::test_c59_memory_and_plan_off_their_alignment_are_refused_before_anything_is_written",
    ),
    "C61 the stack": (
        "e2e/test_memory.py::test_measured_is_planned",
        "e2e/test_memory.py::test_a_stack_without_a_margin_is_noted",
        "size/test_size.py::test_deepest_stack",
        "size/test_size.py::test_measured_stack_is_below_the_computed",
    ),
    "C62 one sample at a time": ("regress/test_faults_c.py::test_c62_many_samples_use_the_memory_of_the_first",),
    "C64 allocations that fail": ("regress/test_faults_c.py::test_c64_c65_nothing_in_the_firmware_can_allocate",),
    "C65 hidden allocations": ("regress/test_faults_c.py::test_c64_c65_nothing_in_the_firmware_can_allocate",),
    "C66 recomputation": (
        "unit/test_recompute.py::test_fault_66_a_chain_of_ten_layers_needs_less_and_its_gradients_are_the_same",
        "unit/test_recompute.py::test_a_budget_of_ram_makes_the_planner_trade_work_for_memory",
    ),
    "G115 does it fit, before anything is built": (
        "e2e/test_memory.py::test_an_estimate_for_every_board_builds_nothing",
        "e2e/test_memory.py::test_an_estimate_is_at_least_the_need_and_near_it",
    ),
    "F100 power cuts": (
        "kernels/test_checkpoint.py::test_a_power_cut_at_every_operation",
        "kernels/test_checkpoint.py::test_two_and_three_power_cuts",
        "kernels/test_checkpoint.py::test_every_combination_of_power_cuts",
        "e2e/test_checkpoints.py::test_a_process_that_is_killed_while_it_saves",
    ),
    "F102 all that the next step needs is in the checkpoint": (
        "e2e/test_checkpoints.py::test_ten_steps_save_reset_load_and_ten_are_twenty",
        "e2e/test_checkpoints.py::test_without_this_part_training_would_go_another_way",
    ),
    "F104 parts of two builds": (
        "regress/test_faults_f.py::test_f104_a_firmware_of_another_build_is_named",
        "regress/test_faults_f.py::test_f104_a_plan_of_another_build_is_named",
        "regress/test_faults_f.py::test_f104_three_builds",
        "regress/test_faults_f.py::test_f104_the_device_refuses_too",
        "regress/test_faults_f.py::test_f104_a_checkpoint_file_of_another_model_or_plan_is_named",
        "e2e/test_checkpoints.py::test_the_command_line_refuses",
    ),
    "D67 CMSIS headers that clash or are missing": (
        "regress/test_faults_d.py::test_d67_an_application_may_include_cmsis_before_and_behind",
        "regress/test_faults_d.py::test_d67_no_source_includes_what_is_not_ours_or_the_language_s",
        "regress/test_faults_d.py::test_d67_the_library_gives_and_takes_no_foreign_name",
    ),
    "D68 kernels that do not link, on every core": (
        "regress/test_faults_d.py::test_d68_every_kernel_links_on_every_core",
        "regress/test_faults_d.py::test_d68_every_kernel_links_on_a_cortex_m0plus",
        "regress/test_faults_d.py::test_d68_every_kernel_compiles_for_other_machines",
        "link/test_real_boards.py::test_sizes",
    ),
    "D69 instructions that do not work": (
        "e2e/test_standalone.py::test_the_commands_of_the_readme",
        "e2e/test_standalone.py::test_an_application_without_a_host_learns",
    ),
    "D71 a link that does not fit": (
        "host/test_flash.py::test_d71_a_link_that_overflows_names_the_plan_and_the_largest_symbols",
        "link/test_board.py::test_a_linker_overflow_is_one_line",
    ),
    "D72 what fills each region": (
        "regress/test_faults_d.py::test_d72_build_says_what_fills_each_region",
        "host/test_flash.py::test_d72_build_shows_the_regions",
    ),
    "D73 no flashing tool": (
        "host/test_flash.py::test_d73_no_tool_lists_the_back_ends_and_how_to_get_them",
        "host/test_flash.py::test_d73_the_order_of_auto_is_printed",
    ),
    "D74 a tool that fails and exits with 0": (
        "host/test_flash.py::test_d74_a_tool_that_prints_an_error_and_exits_with_0_is_not_believed",
        "host/test_flash.py::test_d74_other_bytes_in_the_flash_are_exit_7_with_their_address",
        "host/test_flash.py::test_d74_a_tool_that_only_grumbles_has_done_its_work",
        "host/test_flash.py::test_d74_a_short_read_back_is_not_enough",
        "host/test_flash.py::test_d74_ctrl_c_is_130_whatever_the_tool_makes_of_it",
    ),
    "D76 no permission": (
        "host/test_flash.py::test_d76_no_permission_names_the_node_and_the_fix",
        "host/test_flash.py::test_d76_no_permission_is_seen_before_any_tool_runs",
        "link/test_transport.py::test_a_port_without_permission",
    ),
    "D77 connect under reset": (
        "host/test_flash.py::test_d77_a_second_try_under_reset_is_told",
        "host/test_flash.py::test_d77_a_second_failure_is_the_end",
    ),
    "D78 names that are nearly right, lists as JSON": (
        "host/test_flash.py::test_d78_a_probe_that_is_nearly_named",
        "host/test_flash.py::test_d78_a_board_that_is_nearly_named",
        "host/test_flash.py::test_d78_boards_and_probes_as_json",
    ),
    "D79 one version": ("regress/test_faults_d.py::test_d79_one_version_for_the_package_and_the_firmware",),
    "D81 flags that change results": (
        "e2e/test_optimization_levels.py::test_state_is_the_same",
        "regress/test_faults_d.py::test_d81_fast_math_does_not_compile",
    ),
    "E83 bursts into a busy board": (
        "link/test_under_fire.py::test_a_busy_board_loses_nothing",
        "link/test_under_fire.py::test_ten_thousand_frames_to_a_busy_board",
        "link/test_under_fire.py::test_ten_thousand_frames_to_a_busy_emulated_board",
        "link/test_session.py::test_the_window_is_never_exceeded",
    ),
    "E84 a byte that is lost, changed, doubled or new": (
        "link/test_under_fire.py::test_bytes_of_every_frame_hit_once",
        "link/test_under_fire.py::test_every_byte_of_every_frame",
        "link/test_under_fire.py::test_bytes_hit_on_real_lines",
        "link/test_under_fire.py::test_a_line_that_damages_all_the_time",
    ),
    "E86 sizes around 64, slow readers, partial writes": (
        "link/test_transport.py::test_frames_around_64_bytes_from_a_slow_line",
        "link/test_transport.py::test_a_reader_of_10_kb_a_second_gets_every_byte",
        "link/test_transport.py::test_a_write_that_takes_a_part",
        "link/test_under_fire.py::test_streams_around_the_borders",
        "link/test_under_fire.py::test_bodies_around_the_borders",
    ),
    "E87 rates that do not work": (
        "link/test_rates.py::test_the_fastest_rate_that_carries_frames",
        "link/test_rates.py::test_a_port_that_cannot_have_a_rate",
        "link/test_rates.py::test_a_line_that_turns_bad_later",
        "link/test_rates.py::test_a_host_that_comes_back_at_115200",
    ),
    "E88 which port it is": (
        "link/test_ports.py::test_only_the_port_that_answers_is_taken",
        "link/test_ports.py::test_two_boards_are_listed",
        "link/test_ports.py::test_no_board_says_what_was_tried",
        "link/test_session.py::test_an_echoing_line_is_no_device",
    ),
    "E90 boards that are reset by opening a port": (
        "link/test_ports.py::test_no_reset_never_touches_dtr_and_rts",
        "link/test_ports.py::test_looking_for_a_board_resets_none",
        "link/test_ports.py::test_a_boot_banner_in_the_middle_of_hello",
        "link/test_ports.py::test_what_modem_manager_sends_is_dropped",
    ),
    "E91 a peer that stops": (
        "link/test_under_fire.py::test_a_peer_that_stops",
        "link/test_under_fire.py::test_a_peer_that_stops_and_is_reset",
        "link/test_under_fire.py::test_a_peer_that_stops_at_every_byte",
        "e2e/test_resume.py::test_a_line_that_is_cut",
        "e2e/test_resume.py::test_a_board_that_was_reset",
    ),
    "E92 a flash that failed, and a board that is silent": (
        "link/test_ports.py::test_a_port_that_returns_under_another_name",
        "link/test_ports.py::test_a_port_that_goes_away_while_hello_is_sent",
        "e2e/test_plugin_map.py::test_a_mistake_is_named",
        "e2e/test_plugin_map.py::test_a_mistake_in_json_is_named",
        "e2e/test_plugin.py::test_a_board_that_was_not_flashed_is_a_flash_error_and_not_a_silent_board",
        "e2e/test_plugin.py::test_a_board_that_does_not_answer_is_a_timeout_and_is_waited_for_once",
        "e2e/test_plugin.py::test_a_board_whose_port_comes_back_late_is_waited_for",
    ),
    "E94 a port that another program holds": (
        "link/test_ports.py::test_a_busy_port_says_who_holds_it",
        "link/test_ports.py::test_our_lock_keeps_others_out",
        "link/test_ports.py::test_modem_manager_has_a_hint_of_its_own",
    ),
    "E95 every error code has a text, a cause and a next step": (
        "link/test_refusals.py::test_every_code_of_the_device_has_a_text",
        "link/test_refusals.py::test_every_text_can_be_printed",
    ),
    "E96 counters that stand still": (
        "regress/test_faults_e.py::test_e96_a_board_whose_counter_stands_still_says_so",
        "regress/test_faults_e.py::test_e96_cycles_are_null_and_never_0",
        "link/test_qemu.py::test_ticks_move_and_repeat",
    ),
    "E98 stale lines of a data cache": ("link/test_frame.py::test_the_crc_is_that_of_the_memory",),
}
"""Entry -> tests, as files under tests/."""


def test_every_entry_is_listed_once() -> None:
    numbers = [entry.split()[0] for entry in INDEX]
    assert sorted(numbers) == sorted(f"{section}{n}" for section, entries in SECTIONS.items() for n in entries)
    assert all(INDEX.values())


@pytest.mark.parametrize("entry", INDEX)
def test_every_test_of_an_entry_exists(entry: str) -> None:
    for node in INDEX[entry]:
        file, name = node.split("::")
        assert name in names_in(file), f"{node} does not exist"


FILES = ("regress/test_faults_a.py", "regress/test_faults_b.py", "regress/test_faults_c.py", "regress/test_faults_d.py")


@pytest.mark.parametrize("file", [*FILES, "regress/test_faults_f.py", "host/test_importer_faults.py"])
def test_every_test_of_a_fault_is_listed(file: str) -> None:
    listed = {node for nodes in INDEX.values() for node in nodes}
    named = {name for name in names_in(file) if re.match(r"test_([a-g]\d|fault_)", name)}
    assert {f"{file}::{name}" for name in named} <= listed


def names_in(file: str) -> set[str]:
    """The names that a test file binds at its top level and pytest collects."""
    found: set[str] = set()
    for node in ast.parse((root() / "tests" / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return {name for name in found if name.startswith("test_")}
