*** Settings ***
Documentation     Every image boots in Renode and answers HELLO, and trains there as the reference does.
...               renode-test -r results tests/renode/boards.robot    where python3 has mcugrad, or --variable PYTHON:/path/to/python
Library           OperatingSystem
Library           Process

*** Variables ***
${PYTHON}         python3
${BOARDS}         ${CURDIR}/../../boards
${MODEL}          ${CURDIR}/../../examples/watch/watch_base.tflite
# A frame of SPEC.md section 4.1: HELLO with the nonce 0x52454E44; a test compares it with the codec.
@{HELLO}          0x00    0x02    0x01    0x06    0x44    0x4E    0x45    0x52    0x02    0x05    0xF6    0x41    0x46    0x2B    0x00

*** Test Cases ***
MPS2 AN385 Boots
    Boots And Answers    renode-mps2-an385    sysbus.uart0    qemu-mps2-an385

MPS2 AN386 Boots
    Boots And Answers    renode-mps2-an386    sysbus.uart0    qemu-mps2-an386

MPS2 AN500 Boots
    Boots And Answers    renode-mps2-an500    sysbus.uart0    qemu-mps2-an500

MPS2 AN505 Boots
    Boots And Answers    renode-mps2-an505    sysbus.uart0    qemu-mps2-an505

MPS3 AN547 Boots
    Boots And Answers    renode-mps3-an547    sysbus.uart0    qemu-mps3-an547

STM32F746 Boots
    Boots And Answers    renode-stm32f746    sysbus.usart1    stm32f746g-disco

STM32F4 Boots
    Boots And Answers    renode-stm32f4    sysbus.usart2    nucleo-f446re

NRF52840 Boots
    Boots And Answers    renode-nrf52840    sysbus.uart0    nrf52840-dk

MPS2 AN385 Trains
    Trains As The Reference Does    renode-mps2-an385

MPS2 AN386 Trains
    Trains As The Reference Does    renode-mps2-an386

MPS2 AN500 Trains
    Trains As The Reference Does    renode-mps2-an500

MPS2 AN505 Trains
    Trains As The Reference Does    renode-mps2-an505

MPS3 AN547 Trains
    Trains As The Reference Does    renode-mps3-an547

STM32F746 Trains
    Trains As The Reference Does    renode-stm32f746

STM32F4 Trains
    Trains As The Reference Does    renode-stm32f4

NRF52840 Trains
    Trains As The Reference Does    renode-nrf52840

*** Keywords ***
Boots And Answers
    [Documentation]    The firmware says nothing of its own accord. It must take a command by interrupt and answer with its name.
    [Arguments]    ${board}    ${uart}    ${image}
    ${folder}=    Set Variable    ${TEMPDIR}/mcugrad-${board}
    Mcugrad    build    --board    ${board}    --out    ${folder}
    Execute Command    set bin @${folder}/trainer.elf
    Execute Command    include @${BOARDS}/${board}/renode.resc
    Execute Command    emulation SetGlobalQuantum "0.0001"
    Create Terminal Tester    ${uart}    timeout=2    defaultPauseEmulation=true    binaryMode=true
    Start Emulation
    Wait Until Keyword Succeeds    10x    0s    Hello Is Answered    ${uart}    ${image}

Hello Is Answered
    [Documentation]    What comes before the firmware has switched its receiver on is lost, so this may take a second try.
    [Arguments]    ${uart}    ${image}
    FOR    ${byte}    IN    @{HELLO}
        Execute Command    ${uart} WriteChar ${byte}
    END
    ${name}=    Evaluate    $image.encode().hex(" ")
    Wait For Bytes On Uart    content=${name}    timeout=1

Trains As The Reference Does
    [Documentation]    The host tool starts a Renode of its own, trains, and compares every step's output and all of STATE.
    [Arguments]    ${board}
    ${folder}=    Set Variable    ${TEMPDIR}/mcugrad-${board}
    Create Directory    ${folder}
    ${write}=    Set Variable    from helpers.motions import write_motions; write_motions(r"${folder}/motions.npz", 24, 1)
    ${made}=    Run Process    ${PYTHON}    -c    ${write}    cwd=${CURDIR}/..    stderr=STDOUT
    Should Be Equal As Integers    ${made.rc}    0    msg=${made.stdout}
    Mcugrad    check    ${MODEL}    --data    ${folder}/motions.npz    --board    ${board}
    ...    --classes    7    --train    head,bias:4    --steps    4    --settle    8

Mcugrad
    [Documentation]    Run the host tool; its words are the message where it fails.
    [Arguments]    @{arguments}
    ${said}=    Set Variable    ${TEMPDIR}/mcugrad-robot.txt
    ${done}=    Run Process    ${PYTHON}    -c    from mcugrad.cli import main; main()    @{arguments}
    ...    stdout=${said}    stderr=STDOUT    timeout=600s
    Should Be Equal As Integers    ${done.rc}    0    msg=${done.stdout}
